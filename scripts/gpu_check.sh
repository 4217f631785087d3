#!/usr/bin/env bash
# Checks Trireme on this machine's GPU, unattended: what cannot be tested without one, in order of value.
#   gpu_check.sh [--minutes M] [--peer PROGRAM.py] [--dry] OUT
# From an unpacked bundle (share/trireme/gpu_check.sh), or from a checkout whose build/release holds the target
# gpu_check_programs (TRIREME_BUILD names another build). LibTorch is found as `trireme` finds it.
#   --minutes M    for all sections together; default 25. What one section leaves over goes to the next ones
#   --peer P       a program that trains ViT-B/16 with PyTorch and prints a JSON line a mode; it is started as
#                  python3 P --device cuda --which vit --modes eager,compile --batch 256 --steps 30
#   --dry          the CPU in the GPU's place, at small sizes: tests this script
# OUT gets report.json and report.md, and each section's log. A section's verdict: passed, failed, timed out, or not
# possible here. Exit code: 0 none failed or timed out, 1 some did, 2 wrong arguments, or a program is missing.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
self=$here/$(basename "${BASH_SOURCE[0]}")
. "$here/gpu_check_sections.sh" && . "$here/gpu_check_speed.sh" || exit 2

usage() { printf 'gpu_check.sh: %s\n' "$1" >&2; sed -n '3,11s/^# \{0,2\}//p' "$self" >&2; exit 2; }

minutes=25 peer='' dry='' out='' section=''
while [ $# -gt 0 ]; do
  case $1 in
    --minutes | --peer | --section)
      [ $# -ge 2 ] || usage "$1 needs a value"
      case $1 in --minutes) minutes=$2 ;; --peer) peer=$2 ;; --section) section=$2 ;; esac
      shift ;;
    --dry) dry=1 ;;
    -*) usage "no option $1" ;;
    *) [ -z "$out" ] || usage "one OUT, not also $1"; out=$1 ;;
  esac
  shift
done
[ -n "$out" ] || usage "OUT is missing"
[[ $minutes =~ ^[0-9]+$ ]] && [ "$minutes" -ge 1 ] || usage "--minutes $minutes: expected a whole number from 1"
[ -z "$peer" ] || [ -f "$peer" ] || usage "--peer $peer: no such file"
command -v python3 >/dev/null || usage "python3 is not on PATH; it writes the report"

# --- where the programs are -------------------------------------------------------------------------------------------
if [ -x "$here/../../bin/trireme" ]; then
  prefix=$(cd "$here/../.." && pwd)
  tests=$prefix/libexec/trireme/tests
else
  prefix=${TRIREME_BUILD:-$here/../build/release}
  tests=$prefix/libexec/trireme/tests
fi
trireme=$prefix/bin/trireme
[ -x "$trireme" ] || usage "$trireme is missing: cmake --build build/release --target gpu_check_programs"
device=cuda
if [ -n "$dry" ]; then
  device=cpu
  export CUDA_VISIBLE_DEVICES=''
fi

if [ -n "$section" ]; then
  "section_$section"
  exit
fi

# --- all sections, each by a process of its own under its limit -------------------------------------------------------
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
rm -f "$out/verdicts" "$out"/report.*
if ! "$trireme" env >"$out/machine" 2>&1; then
  cat "$out/machine" >&2
  exit 2
fi
command -v nvidia-smi >/dev/null && [ -z "$dry" ] && nvidia-smi >>"$out/machine" 2>&1
gpus=$(sed -n 's/^GPUs *\([0-9]*\).*/\1/p' "$out/machine")
if [ -z "$dry" ] && [ "${gpus:-0}" = 0 ]; then
  printf 'gpu_check.sh: no GPU here (%s); --dry tests the script without one\n' "$(grep '^GPUs' "$out/machine")" >&2
  exit 2
fi
printf '{"dry": %s, "device": "%s", "gpus": %s, "minutes": %s, "started": "%s"}\n' "$([ -n "$dry" ] && echo true || echo false)" \
  "$device" "${gpus:-0}" "$minutes" "$(date -u +%FT%TZ)" >"$out/facts.json"

end=$((SECONDS + 60 * minutes))
parts_left=0
while IFS='|' read -r _ part _; do parts_left=$((parts_left + part)); done <<<"$sections"
more=()
[ -z "$dry" ] || more+=(--dry)
[ -z "$peer" ] || more+=(--peer "$(cd "$(dirname "$peer")" && pwd)/$(basename "$peer")")
while IFS='|' read -r name part title; do
  limit=$(((end - SECONDS) * part / parts_left))
  parts_left=$((parts_left - part))
  rm -rf "${out:?}/$name"
  mkdir -p "$out/$name"
  began=$SECONDS code=124
  if [ "$limit" -ge 2 ]; then
    timeout -k 15 "$limit" bash "$self" --minutes "$minutes" --section "$name" "${more[@]}" "$out" >"$out/$name/log" 2>&1 </dev/null
    code=$?
  else
    limit=0
  fi
  printf '%s\t%s\t%s\t%s\t%s\n' "$name" "$title" "$code" "$((SECONDS - began))" "$limit" >>"$out/verdicts"
  rm -rf "$out/$name/runs"
  python3 "$here/gpu_report.py" page "$out"  # after each: what is known survives whatever ends this script
  status=$?
  printf '%-16s %4d s  %s\n' "$name" "$((SECONDS - began))" "$(sed -n "s/^| \[[^]]*\]($name\/log) | \([^|]*\) |.*/\1/p" "$out/report.md")"
done <<<"$sections"
printf '%s\n' "$out/report.md"
exit "$status"
