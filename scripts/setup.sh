#!/usr/bin/env bash
# Makes a Debian 12 or Ubuntu 24.04 machine ready to build Trireme: system packages, LibTorch, the CUDA compiler.
# Installs what is missing and nothing else, so it can run again at any time (well under a second when all is there).
#
#   TRIREME_VENV    where LibTorch lives (default ~/.cache/trireme/venv); several clones may share it
#   Torch_DIR, CMAKE_PREFIX_PATH    a LibTorch of your own: then none is installed
#   TRIREME_TORCH_SPEC    what pip is asked for (default torch==2.11.0)
#   --fuzzer        also clang with libFuzzer, for the fuzz targets (tests/fuzz)
#   --toolkit-only  the CUDA compiler and nothing else, into TRIREME_VENV, also where the machine has one
#
# Exit codes: 0 ready; 2 something is needed that this script may not install (it says what, and the command);
# 1 an installation failed (the end of its log is printed).
set -euo pipefail

step=set-up
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
toolkit_only=false fuzzer=false
case ${1:-} in
  '') ;;
  --fuzzer) fuzzer=true ;;
  --toolkit-only) toolkit_only=true ;;
  *) say "unexpected argument $1 (known: --fuzzer, --toolkit-only)"; exit 2 ;;
esac
venv=${TRIREME_VENV:-$HOME/.cache/trireme/venv}
torch_spec=${TRIREME_TORCH_SPEC:-torch==2.11.0}
nvcc_spec='cuda-toolkit[nvcc,crt,nvvm,cccl,cudart]==13.0.2'
packages=(g++ cmake ninja-build ccache mold pkg-config python3 python3-venv libopenmpi-dev openmpi-bin
  libtomlplusplus-dev libcli11-dev nlohmann-json3-dev libjpeg-dev libpng-dev libwebp-dev libtiff-dev libgif-dev zlib1g-dev libcsv-dev libicu-dev
  patchelf libjs-chart.js libgtest-dev libgmock-dev libbenchmark-dev)
! $fuzzer || packages+=(clang libclang-rt-dev)
log=$root/build/set-up.log

run() { logged "$log" "$@" || exit 1; }

# --- system packages ------------------------------------------------------------------------------------------------
missing_packages() {
  local installed
  installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null || true)
  local name
  for name in "${packages[@]}"; do
    grep -qxF "installed $name" <<<"$installed" || printf '%s ' "$name"
  done
}

install_packages() {
  if ! command -v dpkg-query >/dev/null; then
    say "this is not Debian or Ubuntu: packages are not checked (CONTRIBUTING.md lists what the build needs)"
    return
  fi
  local missing
  missing=$(missing_packages)
  [ -n "$missing" ] || return 0
  local as_root=()
  if [ "$(id -u)" != 0 ]; then
    if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
      as_root=(sudo -n)
    elif command -v sudo >/dev/null && [ -t 0 ]; then
      say "sudo may ask for your password, to install: $missing"
      sudo -v && as_root=(sudo)
    fi
    if [ ${#as_root[@]} = 0 ]; then
      say "these packages are missing, and installing them needs root: $missing"
      say "run this as root, then start again:"
      printf '    apt-get update && apt-get install -y --no-install-recommends %s\n' "$missing"
      exit 2
    fi
  fi
  say "installing packages: $missing"
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300)
  run "${apt[@]}" update
  # shellcheck disable=SC2086  # a list of words on purpose
  run "${apt[@]}" install -y --no-install-recommends $missing
}

# --- LibTorch -------------------------------------------------------------------------------------------------------
# A LibTorch that the user points at, as CMake would find it.
own_torch() {
  [ -z "${Torch_DIR:-}" ] || { printf '%s' "$Torch_DIR"; return; }
  local prefix IFS=':;'
  for prefix in ${CMAKE_PREFIX_PATH:-}; do
    if [ -f "$prefix/share/cmake/Torch/TorchConfig.cmake" ]; then printf '%s' "$prefix"; return; fi
  done
}

python=/usr/bin/python3
[ -x "$python" ] || python=python3

# The environment with a working pip; made, or mended when an earlier run was cut short.
ensure_venv() {
  if "$venv/bin/python" -m pip --version >/dev/null 2>&1; then return; fi
  if [ -d "$venv" ] && [ -n "$(ls -A "$venv")" ] && [ ! -f "$venv/pyvenv.cfg" ] && [ ! -e "$venv/bin/python3" ]; then
    say "$venv holds something that is not a Python environment; set TRIREME_VENV to another folder"
    exit 2
  fi
  say "making the Python environment $venv"
  mkdir -p "$venv"
  run "$python" -m venv "$venv"
}

# A file in the environment says "installed whole and seen working"; a run that was cut short leaves none.
installed() { [ -f "$venv/.trireme-$1" ] && [ "$(cat "$venv/.trireme-$1")" = "$2" ]; }
mark() { printf '%s' "$2" >"$venv/.trireme-$1"; }

torch_works() {
  local version=${torch_spec##*==}
  "$venv/bin/python" -c "import torch, sys; sys.exit(torch.__version__.split('+')[0] != '$version')" >/dev/null 2>&1
}

install_torch() {
  ensure_venv
  if ! torch_works; then
    say "installing LibTorch ($torch_spec, 4.7 GB with its CUDA libraries) into $venv"
    run "$venv/bin/python" -m pip install --disable-pip-version-check --no-input "$torch_spec"
    if ! torch_works; then
      say "LibTorch does not load; installing it once more"
      run "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --force-reinstall "$torch_spec"
      run "$venv/bin/python" -c 'import torch'
    fi
  fi
  mark torch "$torch_spec"
}

# --- CUDA compiler --------------------------------------------------------------------------------------------------
system_nvcc() {
  local nvcc
  for nvcc in "${CUDACXX:-nvcc}" /usr/local/cuda/bin/nvcc; do
    if "$nvcc" --version >/dev/null 2>&1; then return 0; fi
  done
  return 1
}

install_nvcc() {
  ensure_venv
  say "installing the CUDA compiler ($nvcc_spec) into $venv"
  run "$venv/bin/python" -m pip install --disable-pip-version-check --no-input "$nvcc_spec"
  # The wheels lay a toolkit out without the names that CMake and the linker look for.
  local toolkit file
  for toolkit in "$venv"/lib/python3*/site-packages/nvidia/cu13; do
    [ -e "$toolkit/lib64" ] || ln -s lib "$toolkit/lib64"
    for file in "$toolkit"/lib/lib*.so.*; do
      [ -e "${file%%.so.*}.so" ] || ln -s "$(basename "$file")" "${file%%.so.*}.so"
    done
    local scratch
    scratch=$(mktemp -d)
    printf '__global__ void k(float* x) { *x = 1; }\nint main() { k<<<1, 1>>>(nullptr); }\n' >"$scratch/try.cu"
    run "$toolkit/bin/nvcc" "$scratch/try.cu" -o "$scratch/try"
    rm -rf "$scratch"
  done
  mark nvcc "$nvcc_spec"
}

need=()
torch=$(own_torch)
if [ "$toolkit_only" = true ]; then
  installed nvcc "$nvcc_spec" || need+=(install_nvcc)
else
  install_packages
  [ -n "$torch" ] || installed torch "$torch_spec" || need+=(install_torch)
  system_nvcc || installed nvcc "$nvcc_spec" || need+=(install_nvcc)
fi
if [ ${#need[@]} -gt 0 ]; then
  mkdir -p "$(dirname "$venv")"
  exec 9>"$venv.lock"
  if ! flock -n 9; then
    say "another set-up is filling $venv; waiting for it"
    flock 9
  fi
  for part in "${need[@]}"; do
    case $part in
      install_torch) installed torch "$torch_spec" || install_torch ;;
      install_nvcc) installed nvcc "$nvcc_spec" || install_nvcc ;;
    esac
  done
fi
say "ready (LibTorch: ${torch:-$venv})"
