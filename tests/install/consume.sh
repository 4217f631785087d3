#!/usr/bin/env bash
# Installs a build into a new folder, builds the examples against that alone, and runs them.
#   consume.sh BUILD SOURCE [EXAMPLE]     with train_from_cpp as the EXAMPLE: only that one, and the installed command
set -euo pipefail
build=$(cd "$1" && pwd)
source=$(cd "$2" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix
cd "$work"

cmake --install "$build" --prefix "$prefix" >install.log
for file in bin/trireme lib/libtrireme.so lib/libtrireme_cuda.so libexec/trireme/trireme-worker \
  lib/trireme/plugins/torch_ddp.so lib/cmake/Trireme/TriremeConfig.cmake include/trireme/core/booster/booster.h \
  include/trireme/trireme.h; do
  [ -e "$prefix/$file" ] || { echo "not installed: $file"; exit 1; }
done
# What is installed must stand on its own: no library path may lead back into the build.
while read -r file; do
  if readelf -d "$file" 2>/dev/null | grep -E 'R(UN)?PATH' | grep -qF "$build"; then
    echo "$file looks for libraries in $build"
    exit 1
  fi
done < <(find "$prefix" -type f \( -name '*.so*' -o -perm -100 \))

# ccache, where there is one, knows the headers by their content: what is missing or was changed is compiled anew.
export CCACHE_BASEDIR=$work CCACHE_NOHASHDIR=1
compiler=()
! command -v ccache >/dev/null || compiler=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
examples=(train_from_cpp own_model own_loop my_plugin own_policy own_everything optimize)
[ $# = 2 ] || examples=("$3")
for example in "${examples[@]}"; do
  cmake -S "$source/examples/$example" -B "$example" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" "${compiler[@]}" >"$example.log" 2>&1 &&
    cmake --build "$example" >>"$example.log" 2>&1 || { cat "$example.log"; exit 1; }
done

echo "== the example program, alone and on 2 ranks: the same losses"
export OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
train_from_cpp/spiral 2>alone.txt || { cat alone.txt; exit 1; }
mpirun -n 2 --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 train_from_cpp/spiral 2>both.txt ||
  { cat both.txt; exit 1; }
tail -n 2 alone.txt both.txt
# The first epoch, to 4 digits: later ones differ in the last digits, for sums are taken in another order.
[ "$(grep -m1 -o 'loss [0-9]*\.[0-9]\{4\}' alone.txt)" = "$(grep -m1 -o 'loss [0-9]*\.[0-9]\{4\}' both.txt)" ]

if [ $# = 3 ]; then
  "$prefix/bin/trireme" train "$source/configs/leaves_vit.toml" --ranks 2 --set train.max_steps=2 --set data.images=60
  exit
fi

echo "== a model of one's own, alone and on 2 tensor-parallel ranks"
own_model/own_model train.max_steps=3 2>own_alone.txt || { cat own_alone.txt; exit 1; }
mpirun -n 2 --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 own_model/own_model train.max_steps=3 \
  parallel.tp=2 2>own_tp.txt || { cat own_tp.txt; exit 1; }
tail -n 4 own_alone.txt own_tp.txt
[ "$(grep -o 'loss [0-9]*\.[0-9]\{9\}' own_alone.txt)" = "$(grep -o 'loss [0-9]*\.[0-9]\{9\}' own_tp.txt)" ]

echo "== a loop of one's own, stopped and resumed on 2 ranks"
own_loop/own_loop rings 2 2>own_loop.txt && mpirun --allow-run-as-root --oversubscribe -n 2 own_loop/own_loop rings \
  2>>own_loop.txt || { cat own_loop.txt; exit 1; }
grep -q 'goes on after step 26' own_loop.txt
grep -q 'accuracy 100.0 %' own_loop.txt

echo "== an extension, in two layouts"
"$prefix/bin/trireme" verify "$source/examples/own_everything/own_everything.toml" --steps 3 --layouts "dp=1; tp=2" \
  --set "run.extensions=[\"$work/own_everything/own_everything.so\"]"

echo "== the installed command with the example plugins"
"$prefix/bin/trireme" plugins | tee plugins.txt
grep -q torch_ddp plugins.txt
for plugin in torch_ddp "$work/my_plugin/my_plugin.so"; do
  "$prefix/bin/trireme" train "$source/configs/leaves_vit.toml" --ranks 2 --set train.max_steps=3 \
    --set data.images=120 --set "parallel.plugin=$plugin" --set "run.dir=run_$(basename "$plugin" .so)"
done
grep -q my_plugin run_my_plugin/config.toml
"$prefix/bin/trireme" train "$source/configs/leaves_vit.toml" --ranks 2 --set train.max_steps=3 --set data.images=120 \
  --set "parallel.plugin=$work/own_policy/own_policy.so" --set parallel.tp=2 --set run.dir=run_own_policy
python3 - <<'PY'
import json
def losses(run):
    return [json.loads(l)["loss"] for l in open(f"run_{run}/metrics.jsonl") if json.loads(l)["kind"] == "step"]
theirs = losses("torch_ddp")
for run in "my_plugin", "own_policy":
    ours = losses(run)
    assert len(ours) == 3 and all(abs(a - b) < 1e-4 for a, b in zip(ours, theirs)), (run, ours, theirs)
print("the same losses with all plugins:", theirs)
PY
