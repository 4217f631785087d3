#!/usr/bin/env bash
# Makes the relocatable archive of a build: the command, libraries, plugins, headers, CMake package and configurations,
# with the shared libraries they need besides glibc and LibTorch (Open MPI's runtime and components, the image
# libraries, libcsv, ICU).
#   bundle.sh BUILD ARCHIVE.tar.zst [CMAKE]          called by: cmake --build build/release --target bundle
#   bundle.sh --gpu BUILD ARCHIVE.tar.gz [CMAKE]     by the target gpu_bundle: with gpu_check.sh and its programs
# Exit code 1: a library or program is missing, or the archive is larger than 50 MB, with --gpu than 20 MB.
set -euo pipefail
step=bundle
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
gpu=
if [ "$1" = --gpu ]; then
  gpu=1
  shift
fi
build=$(cd "$1" && pwd)
archive=$2 limit_mb=50
pack=(cf "$archive" --zstd)
[ -z "$gpu" ] || limit_mb=20 pack=(czf "$archive")  # a bare machine may lack zstd
cmake=${3:-cmake}
name=$(basename "$archive")
name=${name%.tar.*}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/$name

PATH=$PATH:/usr/sbin  # icupkg
for tool in patchelf icupkg; do
  command -v "$tool" >/dev/null || { say "$tool is missing: run scripts/setup.sh"; exit 1; }
done
"$cmake" --install "$build" --prefix "$tree" --strip >/dev/null
rm "$tree/share/trireme/libtorch"  # the launcher looks for one on the machine it is on
cp -r "$root/configs" "$tree/share/trireme/"
if [ -n "$gpu" ]; then
  cp "$root"/scripts/gpu_check*.sh "$root/scripts/gpu_report.py" "$tree/share/trireme/"
  [ -d "$build/libexec/trireme/tests" ] || { say "no programs: build the target gpu_check_programs"; exit 1; }
  cp -rL "$build/libexec/trireme/tests" "$tree/libexec/trireme/tests"
  strip "$tree"/libexec/trireme/tests/*
fi
cp -r "$root"/{README.md,LICENSE,CHANGELOG.md,CONTRIBUTING.md,docs,examples} "$tree/"
mkdir "$tree/bench"
cp -r "$root/bench/records" "$tree/bench/"

# --- Open MPI: the launcher, its daemon, and the components that need no network library of their own ----------------
mpi=$tree/lib/trireme/openmpi
ompi() { ompi_info --path "$1" --parsable | cut -d: -f3; }
mkdir -p "$mpi/bin" "$mpi/lib/openmpi3" "$mpi/share" "$mpi/etc" "$mpi/pmix/lib" "$mpi/pmix/share"
# Both look for their parts in the folders of another installation unless they are told of these.
for program in mpirun orted; do
  cp "$(readlink -f "$(ompi bindir)/$program")" "$mpi/bin/$program.bin"
  cat >"$mpi/bin/$program" <<EOF
#!/bin/sh
mpi=\$(dirname "\$(dirname "\$(readlink -f "\$0")")")
export OPAL_PREFIX="\$mpi" OPAL_BINDIR="\$mpi/bin" OPAL_LIBDIR="\$mpi/lib" OPAL_PKGLIBDIR="\$mpi/lib/openmpi3" \\
  OPAL_DATADIR="\$mpi/share" OPAL_PKGDATADIR="\$mpi/share/openmpi" OPAL_SYSCONFDIR="\$mpi/etc" PMIX_PREFIX="\$mpi/pmix"
exec "\$mpi/bin/$program.bin" "\$@"
EOF
  chmod +x "$mpi/bin/$program"
done
ln -s ../lib/trireme/openmpi/bin/mpirun "$tree/bin/mpirun"
cp -rL "$(ompi pkgdatadir)" "$mpi/share/openmpi"
for component in "$(ompi pkglibdir)"/mca_*.so; do
  case $(basename "$component") in
    *_ucx.so | *_ofi.so | *_psm*.so | *_openib.so | *monitoring* | mca_io_* | mca_fs_* | mca_fcoll_* | mca_fbtl_* | \
      mca_sharedfp_* | mca_memheap_* | mca_scoll_* | mca_spml_* | mca_sshmem_* | mca_atomic_* | *_flux.so) ;;
    *) cp "$component" "$mpi/lib/openmpi3/" ;;
  esac
done
pmix=$(dirname "$(readlink -f "$(ldconfig -p | awk '/libpmix\.so\.2 / {print $NF; exit}')")")
[ -d "$pmix/pmix" ] || pmix=$pmix/pmix2/lib
if [ -d "$pmix/pmix" ]; then
  cp -r "$pmix/pmix" "$mpi/pmix/lib/"
  cp -r "$pmix/../share/pmix" "$mpi/pmix/share/"
fi

# --- the shared libraries that all of these need ----------------------------------------------------------------------
programs() { find "$tree" -type f \( -name '*.so*' -o -perm -100 \) -exec sh -c 'head -c 4 "$1" | grep -q ELF' _ {} \; -print; }
# Lines "name => path" of what the system gives; glibc, the compiler's runtime, LibTorch and CUDA stay where they are.
needed() {
  programs | while read -r file; do ldd "$file" 2>/dev/null || true; done | awk '/=>/ {print $1, $3}' | sort -u |
    grep -vE '^(ld-linux|libc|libm|libdl|libpthread|librt|libutil|libresolv|libstdc\+\+|libgcc_s|libgomp)[-.]' |
    grep -vE '^(libtrireme|libtorch|libc10|libcu|libnv|libnccl|libcaffe2|libshm)'
}
while read -r library path; do
  [ -f "$path" ] || { say "$library is needed and was not found"; exit 1; }
  [ -e "$mpi/lib/$library" ] || cp -L "$path" "$mpi/lib/$library"
done < <(needed)

# --- what their licences ask for: the notice with each copy, as Debian's packages keep it --------------------------------
package_of() { { dpkg -S "$1" || dpkg -S "${1#/usr}"; } 2>/dev/null | head -n 1 | cut -d: -f1; }  # some are listed below /lib
{
  needed | awk '{print $2}'
  printf '%s\n' "$(ompi bindir)/mpirun" /usr/include/nlohmann/json.hpp /usr/include/CLI/CLI.hpp /usr/include/toml++/toml.h
  [ ! -e "$tree/share/trireme/plot/chart.min.js" ] || sed -n 's/^TRIREME_CHART_JS:FILEPATH=//p' "$build/CMakeCache.txt"
} | xargs readlink -f | sort -u >"$work/copied"
while read -r file; do
  package=$(package_of "$file") || { say "$file belongs to no package: its licence is not known"; exit 1; }
  mkdir -p "$tree/share/doc/third_party/$package"
  cp -L "/usr/share/doc/$package/copyright" "$tree/share/doc/third_party/$package/"
done <"$work/copied"

# --- where each looks for the others ----------------------------------------------------------------------------------
programs | while read -r file; do
  up=$(realpath --relative-to="$(dirname "$file")" "$tree/lib")
  patchelf --set-rpath "\$ORIGIN/$up:\$ORIGIN/$up/trireme/openmpi/lib:\$ORIGIN/$up/../libtorch/lib" "$file"
done
strip --strip-unneeded "$mpi"/lib/*.so* "$mpi"/lib/openmpi3/*.so "$mpi"/bin/* 2>/dev/null || true

# --- of ICU's data, properties and normalisation: without 30 MB of languages, converters and dictionaries, unused here --
for library in "$mpi"/lib/libicudata.so.*; do
  symbol=$(nm -D --defined-only "$library" | awk '/ icudt/ {print $3; exit}')  # icudt72_dat; the package is icudt72l
  data=$work/${symbol%_dat}l.dat
  mkdir "$work/icu"
  objcopy -O binary -j .rodata "$library" "$data"
  icupkg -l "$data" | grep -vE '\.(icu|nrm)$' >"$work/unused.txt"
  icupkg -r "$work/unused.txt" "$data" "$work/icu/$(basename "$data")"
  printf '.section .rodata\n.balign 16\n.globl %s\n.type %s, @object\n%s: .incbin "%s"\n.size %s, . - %s\n.section .note.GNU-stack,""\n' \
    "$symbol" "$symbol" "$symbol" "$work/icu/$(basename "$data")" "$symbol" "$symbol" |
    cc -shared -nostdlib -Wl,-soname,"$(basename "$library")" -x assembler - -o "$library"
done

rm -f "$archive"
(cd "$work" && "$cmake" -E tar "${pack[@]}" "$name")
size=$(du -m --apparent-size "$archive" | cut -f1)
say "$archive: $size MB"
if [ "$size" -gt "$limit_mb" ]; then
  say "that is more than $limit_mb MB"
  exit 1
fi
