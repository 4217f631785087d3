#!/usr/bin/env bash
# Trains BERT on SST-2 as a baseline and optimised, each on one device and on several, measures their steps in turn, and
# draws one page that compares the runs.
#
#   compare.sh [--data FOLDER] [--tokenizer FOLDER] [--ranks N] [--seconds S] [--out FOLDER] [--set KEY=VALUE]...
#
# --data       train.tsv and dev.tsv of SST-2; data/sst2
# --tokenizer  vocab.txt, or weights with it, such as a download of google-bert/bert-base-uncased; data/bert
# --ranks      devices of the runs on several; 2
# --seconds    of measured steps for each way; 10
# --out        receives a run folder and a log for each run, bench.txt and compare.html; runs/bert_sst2
# --set        a setting for all runs, such as model.weights=FOLDER or train.max_steps=200
# TRIREME      the program; by default trireme of the PATH, else of build/release
#
# Exit code 1: a run failed; 2: the arguments, or the configuration, are wrong.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
data=data/sst2 tokenizer=data/bert ranks=2 seconds=10 out=runs/bert_sst2 settings=()
fail() { echo "compare.sh: $*" >&2; exit 2; }
while [ $# -gt 0 ]; do
  case $1 in --data | --tokenizer | --ranks | --seconds | --out | --set) [ $# -gt 1 ] || fail "$1 needs a value" ;; esac
  case $1 in
    --data) data=$2 ;;
    --tokenizer) tokenizer=$2 ;;
    --ranks) ranks=$2 ;;
    --seconds) seconds=$2 ;;
    --out) out=$2 ;;
    --set) settings+=(--set "$2") ;;
    -h | --help) sed -n '2,/^set -/{/^set -/!s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) fail "no option \"$1\"; there are --data, --tokenizer, --ranks, --seconds, --out and --set" ;;
  esac
  shift 2
done
trireme=${TRIREME:-$(command -v trireme || echo "$here/../../build/release/bin/trireme")}
[ -x "$trireme" ] || fail "no program trireme on the PATH or in build/release; build it, or set TRIREME"
[ -f "$data/train.tsv" ] || fail "$data has no train.tsv; name the folder of SST-2 with --data FOLDER"
[[ $ranks =~ ^[1-9][0-9]*$ ]] || fail "--ranks $ranks: expected a whole number, at least 1"
[ ! -e "$out/compare.html" ] || fail "$out has an earlier comparison; name another folder with --out"
mkdir -p "$out"
settings+=(--set data.path="$data" --set data.tokenizer="$tokenizer")

# The baseline computes in fp32 and pads each batch to its longest sentence as they come. On CPUs, bf16 is faster only
# where they have instructions for it.
baseline=(--set data.length_buckets=false)
optimised=()
if nvidia-smi --list-gpus 2>/dev/null | grep -q '^GPU' || grep -qwE 'avx512_bf16|amx_bf16' /proc/cpuinfo; then
  optimised+=(--set train.precision=bf16)
else
  settings+=(--set run.threads=1)
fi

failed=0
for devices in 1 "$ranks"; do
  for way in baseline optimised; do
    name=${way}_$devices
    [ ! -e "$out/$name/summary.json" ] || continue  # an earlier call has done it
    declare -n of_way=$way
    echo "$way on $devices ..." >&2
    "$trireme" train "$here/bert_sst2.toml" --ranks "$devices" --set run.dir="$out/$name" \
      --set train.global_batch=$((24 * devices)) "${settings[@]}" "${of_way[@]}" >"$out/$name.log" 2>&1 || {
      failed=$?
      echo "  failed; the end of $out/$name.log:" >&2
      tail -n 3 "$out/$name.log" | sed 's/^/  /' >&2
      [ "$failed" != 2 ] || exit 2
    }
  done
done
[ "$failed" = 0 ] || exit 1
for way in baseline optimised; do
  declare -n of_way=$way
  "$trireme" bench "$here/bert_sst2.toml" --seconds "$seconds" "${settings[@]}" "${of_way[@]}"
done | tee "$out/bench.txt"
"$trireme" plot "$out" --out "$out/compare.html"
