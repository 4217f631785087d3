#!/usr/bin/env bash
# Configures the project as users' machines do, which a development machine may not show: with Debian's own CMake, as its
# package ships it, and with the newest release, each with a CUDA toolkit laid out as the Python wheels lay it out.
#   configure.sh SOURCE LIBTORCH
# What is downloaded stays in ~/.cache/trireme/configure. Exit code 77 (skipped): no apt-get, or nothing can be downloaded.
set -euo pipefail
source=$(cd "$1" && pwd)
torch=$2
kept=${XDG_CACHE_HOME:-$HOME/.cache}/trireme/configure
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$kept"
exec 9>"$kept/lock"
flock 9

# Skips where nothing can be downloaded; else what failed is a fault of ours.
fail_or_skip() {
  cat "$work/log"
  if python3 -m pip download -q --disable-pip-version-check --no-input --no-deps --dest "$work/probe" wheel >/dev/null 2>&1; then
    echo "failed: $*"
    exit 1
  fi
  echo "skipped: $*"
  exit 77
}

command -v apt-get >/dev/null || { echo "skipped: there is no apt-get here"; exit 77; }
if [ ! -x "$kept/debian/usr/bin/cmake" ]; then
  (cd "$work" && apt-get download cmake cmake-data) >"$work/log" 2>&1 ||
    { cat "$work/log"; echo "skipped: CMake's packages; are the package lists out of date?"; exit 77; }
  rm -rf "$kept/debian"
  for package in "$work"/*.deb; do dpkg -x "$package" "$kept/debian"; done
fi
if [ ! -x "$kept/newest/bin/cmake" ]; then
  python3 -m venv "$work/venv" && "$work/venv/bin/python" -m pip install --disable-pip-version-check --no-input \
    --target "$work/newest" cmake >"$work/log" 2>&1 || fail_or_skip "CMake's wheel"
  rm -rf "$kept/newest"
  mv "$work/newest/cmake/data" "$kept/newest"
fi
TRIREME_VENV=$kept/venv CMAKE_PREFIX_PATH=$torch "$source/scripts/setup.sh" --toolkit-only >"$work/log" 2>&1 ||
  fail_or_skip "the toolkit's wheels"

toolkit=$(echo "$kept"/venv/lib/python3*/site-packages/nvidia/cu13)
for cmake in debian/usr newest; do
  cmake=$kept/$cmake/bin/cmake
  echo "== $("$cmake" --version | head -n 1), $("$toolkit/bin/nvcc" --version | tail -n 1)"
  rm -rf "$work/build"
  CUDA_HOME=$toolkit "$cmake" -S "$source" -B "$work/build" -G Ninja -DCMAKE_PREFIX_PATH="$torch" \
    -DCMAKE_CUDA_COMPILER="$toolkit/bin/nvcc" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  grep -q 'CMake Deprecation Warning' "$work/log" && { cat "$work/log"; exit 1; }
  tail -n 1 "$work/log"
done
