#!/usr/bin/env bash
# Makes the .deb and the bundle of a build, unpacks the bundle in another place, and trains with it on 2 ranks, hidden from the build, from the
# system's Open MPI and from every LibTorch but the one that it is told of.
#   bundle.sh BUILD LIBTORCH
set -euo pipefail
build=$(cd "$1" && pwd)
torch=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
version=$(sed -n 's/.*TRIREME_VERSION "\(.*\)"/\1/p' "$source/core/base/version.h")

"$source/scripts/bundle.sh" "$build" "$work/trireme-$version-linux-x86_64.tar.zst"
cd "$work"
cmake -E tar xf "trireme-$version-linux-x86_64.tar.zst"
mv "trireme-$version-linux-x86_64" moved
for path in bin/trireme share/trireme/configs/leaves_vit.toml include/trireme/core/booster/booster.h \
  lib/cmake/Trireme/TriremeConfig.cmake share/trireme/plot/chart.min.js lib/trireme/plugins/gemini.so lib/trireme/openmpi/bin/mpirun; do
  [ -e "moved/$path" ] || { echo "not in the bundle: $path"; exit 1; }
done

# No library of the system's Open MPI, and no path of this machine, is in what the programs load.
export TRIREME_TORCH=$torch
if grep -rlF "$build" moved --include='*.so*' --include='trireme*'; then echo "these name the build folder"; exit 1; fi
LD_LIBRARY_PATH=$work/moved/lib/trireme/openmpi/lib:$torch/lib ldd moved/libexec/trireme/trireme-worker \
  moved/lib/trireme/openmpi/bin/mpirun.bin moved/lib/trireme/openmpi/lib/openmpi3/*.so >loaded.txt
if grep -E 'not found|libmpi.*=> /(usr|lib)|libopen-.*=> /(usr|lib)|libpmix.*=> /(usr|lib)' loaded.txt; then
  echo "not from the bundle"
  exit 1
fi
PATH=/usr/bin:/bin moved/bin/trireme train moved/share/trireme/configs/leaves_vit.toml --ranks 2 --set train.max_steps=3 \
  --set data.images=120 --set run.dir="$work/run" 2>&1 | tee trained.txt
grep -q 'shared memory · 2 ranks' trained.txt
moved/bin/trireme eval run
moved/bin/trireme plot run
moved/bin/trireme verify moved/share/trireme/configs/leaves_vit.toml --layouts 'dp=1; dp=2' --set data.images=60 | tee verified.txt
grep -q 'same' verified.txt
[ -f moved/docs/errors.md ] && [ -d moved/examples/own_loop ] || { echo "no documents"; exit 1; }
for package in libopenmpi3 openmpi-bin libjpeg62-turbo libpng16-16 libwebp7 libtiff6 libgif7 libcsv3 libicu72 libpmix2 libhwloc15 libcli11-dev libjs-chart.js; do
  [ -s "moved/share/doc/third_party/$package/copyright" ] || { echo "no licence of $package"; exit 1; }
done
[ ! -e moved/libexec/trireme/tests ] && [ ! -e moved/share/trireme/gpu_check.sh ] || { echo "programs of the GPU check are in the bundle"; exit 1; }
PATH=/usr/bin:/bin moved/bin/mpirun -n 2 --oversubscribe --allow-run-as-root --quiet moved/bin/trireme train \
  moved/share/trireme/configs/leaves_vit.toml --set train.max_steps=3 --set data.images=120 --set run.dir="$work/of_mpi" | tee of_mpi.txt
grep -q 'Open MPI .* mpirun, 2 ranks' of_mpi.txt
tokenizers=$build/tests/unit/tokenizers/tokenizers_test
if [ -x "$tokenizers" ]; then  # the bundle's ICU has a part of the data
  LD_LIBRARY_PATH=$work/moved/lib/trireme/openmpi/lib "$tokenizers" --gtest_brief=1
fi
# Without one, it says what to do.
if env -u TRIREME_TORCH -u VIRTUAL_ENV -u CONDA_PREFIX HOME="$work" PATH=/nowhere moved/bin/trireme env 2>none.txt; then exit 1; fi
grep -q 'pip install torch' none.txt

if [ -x "$build/libexec/trireme/tests/comm_test" ]; then
  echo "== the GPU check, from an archive of its own"
  "$source/scripts/bundle.sh" --gpu "$build" "$work/check.tar.gz"
  tar xzf check.tar.gz
  PATH=/usr/bin:/bin check/share/trireme/gpu_check.sh --dry --sections machine,nccl.comm,suites.zero checked
  [ "$(grep -c ' passed' checked/table.txt)" = 3 ] || { cat checked/report.md; exit 1; }
else
  echo "not built: gpu_check_programs"
fi

echo "== the .deb, unpacked"
cpack --config "$build/CPackConfig.cmake" -B "$work/deb" >deb.log 2>&1 || { cat deb.log; exit 1; }
dpkg-deb -I deb/trireme_*.deb | grep -E 'Package|Version|Depends'
dpkg -x deb/trireme_*.deb unpacked
unpacked/usr/bin/trireme env
unpacked/usr/bin/trireme train moved/share/trireme/configs/leaves_vit.toml --ranks 2 --set train.max_steps=3 \
  --set data.images=120 --set run.dir="$work/of_deb"
[ ! -e unpacked/usr/share/trireme/libtorch ]
