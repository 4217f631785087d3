#!/usr/bin/env bash
# Checks Trireme on this machine's GPU, unattended: what cannot be tested without one, in order of value.
#   gpu_check.sh [--seconds S] [--sections A,B,...] [--peer PROGRAM.py] [--dry] OUT
# From the unpacked archive of the target gpu_bundle (share/trireme/gpu_check.sh), or from a checkout whose build/release
# holds the target gpu_check_programs (TRIREME_BUILD names another build). LibTorch is found as `trireme` finds it.
#   --seconds S    for everything together; default 600. A section that would get less than a third of its limit is
#                  skipped. From 1200 on, limits grow with S
#   --sections L   only these of the list in gpu_check_sections.sh; `nccl` stands for nccl.comm, nccl.dp2_zero3 ...
#   --peer P       a program that trains ViT-B/16 with PyTorch and prints a JSON line a mode; it is started as
#                  python3 P --device cuda --which vit --modes eager,compile --batch 256 --steps 15
#   --dry          the CPU in the GPU's place, at small sizes: tests this script
#   --help         prints this text
# OUT gets report.md, report.json, table.txt and logs.tgz, written anew after each section. A section's verdict: passed,
# failed, timed out, skipped (no time left), stopped (this script was ended), or not possible here.
# Exit code: 0 none failed or timed out, 1 some did or none had time to run, 2 wrong arguments, or a program or the GPU
# is missing.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
self=$here/$(basename "${BASH_SOURCE[0]}")
# shellcheck source=scripts/gpu_check_sections.sh
. "$here/gpu_check_sections.sh" || exit 2

help_text() { sed '1d; /^[^#]/Q; s/^# \{0,1\}//' "$self"; }
usage() { printf 'gpu_check.sh: %s\n' "$1" >&2; help_text >&2; exit 2; }

seconds=600 only=() peer='' dry='' out=''
while [ $# -gt 0 ]; do
  case $1 in
    --seconds | --sections | --peer)
      [ $# -ge 2 ] || usage "$1 needs a value"
      case $1 in
        --seconds) seconds=$2 ;;
        --sections) IFS=, read -ra only <<<"$(sed 's/ *, */,/g; s/^ *//; s/ *$//' <<<"$2")," ;;  # the comma ends the last
        --peer) peer=$2 ;;
      esac
      shift ;;
    --dry) dry=1 ;;
    --help | -h) help_text; exit 0 ;;
    -*) usage "no option $1" ;;
    *) [ -z "$out" ] || usage "one OUT, not also $1"; out=$1 ;;
  esac
  shift
done
[ -n "$out" ] || usage "OUT is missing"
[[ $seconds =~ ^0*[1-9][0-9]{0,8}$ ]] || usage "--seconds $seconds: expected a whole number from 1"
seconds=$((10#$seconds))
[ -z "$peer" ] || peer=$(realpath -e "$peer" 2>/dev/null) || usage "--peer: no such file"
known=$(cut -d'|' -f1 <<<"$sections")
for word in "${only[@]}"; do
  grep -qxF -- "$word" <<<"$known"$'\n'"$(cut -d. -f1 <<<"$known")" || usage "--sections: no section \"$word\"; known: ${known//$'\n'/ }"
done
command -v python3 >/dev/null || usage "python3 is not on PATH; it writes the report"

# --- programs and libraries -------------------------------------------------------------------------------------------
prefix=$here/../..
[ -x "$prefix/bin/trireme" ] || prefix=${TRIREME_BUILD:-$here/../build/release}
prefix=$(realpath -m "$prefix") device=cuda
tests=$prefix/libexec/trireme/tests trireme=$prefix/bin/trireme
[ -x "$trireme" ] && [ -d "$tests" ] || usage "$trireme or $tests is missing: cmake --build build/release --target gpu_check_programs"
if [ -n "$dry" ]; then
  device=cpu
  export CUDA_VISIBLE_DEVICES=''
fi
about=$("$trireme" env 2>&1) || { printf '%s\n' "$about" >&2; exit 2; }
gpus=$(sed -n 's/^GPUs *\([0-9]*\).*/\1/p' <<<"$about")
gpus=${gpus:-0}
if [ -z "$dry" ] && [ "$gpus" = 0 ]; then
  printf 'gpu_check.sh: no GPU here (%s); --dry tests the script without one\n' "$(grep '^GPUs' <<<"$about")" >&2
  exit 2
fi
torch=$(sed -n 's/^LibTorch  *[^(]*(\(.*\))$/\1/p' <<<"$about")
work=$(mktemp -d) && mkdir -p "$out" "$work/logs" && out=$(realpath "$out") || exit 2
rm -f "$out"/{report.md,report.json,table.txt,logs.tgz}
export work device dry peer prefix tests trireme torch gpus here seconds
users_libraries=${LD_LIBRARY_PATH:-}
export users_libraries TMPDIR=$work TRIREME_TORCH=$torch TRIREME_PLUGIN_PATH=$prefix/lib/trireme/plugins
LD_LIBRARY_PATH=$torch/lib
for file in "$torch"/../nvidia/*/lib; do LD_LIBRARY_PATH+=:$file; done  # CUDA's own, which test programs may need
export LD_LIBRARY_PATH=$LD_LIBRARY_PATH${users_libraries:+:$users_libraries}
# Ranks that share a GPU send through the host: no kernel waits for a peer's, so CUDA may load modules when they are used.
export CUDA_MODULE_LOADING=LAZY OMP_WAIT_POLICY=passive

# The libraries of a fresh machine lie on a disk that takes a minute to read: it begins beside the first sections.
files=("$torch"/lib/libtorch_cuda.so "$torch"/../nvidia/{cu13,cudnn,nccl}/lib/*.so.*)
[ -z "$dry" ] || files=("$torch"/lib/libc10.so)
cat "${files[@]}" >/dev/null 2>&1 &
reader=$!

# --- each section by a process of its own under its limit --------------------------------------------------------------
end=$((SECONDS + seconds)) running=''
printf '{"device": "%s", "gpus": %s, "seconds": %s, "started": "%s"}\n' "$device" "$gpus" "$seconds" "$(date -u +%FT%TZ)" >"$work/facts.json"

note() { printf '%s\t%s\t%s\t%s\t%s\n' "$name" "$title" "$1" $((SECONDS - began)) "$limit" >>"$work/verdicts"; }  # CODE
save() {  # what is known so far, into OUT
  python3 "$here/gpu_report.py" page "$work" "$out" && tail -n "$1" "$out/table.txt"
  tar czf "$out/.logs.tgz" -C "$work" logs && mv "$out/.logs.tgz" "$out/logs.tgz"
}
under_limit() {  # SECONDS LOG: the section's command, so that a signal ends this script at once
  timeout -k 5 "$1" bash -c '. "$here/gpu_check_sections.sh"; eval "$1"' _ "$command" >"$2" 2>&1 </dev/null &
  running=$!
  wait "$running"
  local code=$?
  running=''
  return "$code"
}
finish() {
  if [ -n "$running" ]; then
    kill "$running"
    note stopped
    save 1  # before the wait: a kill may follow
    wait "$running"
  fi
  kill "$reader" 2>/dev/null
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 143' TERM HUP
trap 'exit 130' INT

chosen() {  # NAME: whether --sections has it, or its group
  local word
  [ ${#only[@]} -gt 0 ] || return 0
  for word in "${only[@]}"; do [ "$word" != "$1" ] && [ "$word" != "${1%%.*}" ] || return 0; done
  return 1
}
ran=0 skipped=0
while IFS='|' read -r name limit title command; do
  chosen "$name" || continue
  [ "$seconds" -lt 1200 ] || limit=$((limit * seconds / 600))
  left=$((end - SECONDS - 8)) began=$SECONDS
  if [ "$left" -lt $(((limit + 2) / 3)) ]; then
    note skipped
    skipped=$((skipped + 1))
    continue
  fi
  export section=$name folder=$work/logs/$name runs=$work/runs/$name
  mkdir -p "$folder" "$runs"
  under_limit $((left < limit ? left : limit)) "$folder/log"
  code=$?
  left=$((end - SECONDS - 8))
  if [ "$code" != 0 ] && [ "$left" -ge 20 ] && grep -qE 'CUDA error|illegal memory|misaligned|device-side assert' "$folder/log"; then
    CUDA_LAUNCH_BLOCKING=1 under_limit $((left < 40 ? left : 40)) "$folder/blocking"  # shows where the error is
  fi
  rm -rf "$runs"
  note "$code"
  ran=$((ran + 1))
  save $((skipped + 1))
  skipped=0
done <<<"$sections"
[ "$skipped" = 0 ] || save "$skipped"
printf '%s\n' "$out/report.md"
[ "$ran" != 0 ] || printf 'gpu_check.sh: no section had time to run; raise --seconds\n' >&2
[ "$ran" != 0 ] && ! grep -qE '"verdict": "(failed|timed out)"' "$out/report.json"
