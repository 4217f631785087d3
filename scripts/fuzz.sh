#!/usr/bin/env bash
# Runs a fuzz target of tests/fuzz: scripts/fuzz.sh safetensors|manifest SECONDS [--keep]
#                                   scripts/fuzz.sh safetensors|manifest --inputs N    the same N inputs each time
# It begins with the committed corpus. An input that crashes, leaks or takes 20 s is written to build/fuzz, and its path
# is printed: `build/release/tests/fuzz/fuzz_NAME PATH` runs it alone. --keep: what was found is added to the corpus,
# which is then minimised.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=$1 keep=${3:-}
limits=(-max_total_time="$2")
[ "$2" != --inputs ] || limits=(-seed=1 -runs="$3")
program=${TRIREME_FUZZ_PROGRAMS:-build/release/tests/fuzz}/fuzz_$target
corpus=tests/fuzz/corpus/$target
[ -x "$program" ] || { echo "fuzz.sh: $program is not built; it needs clang and libclang-rt-dev"; exit 2; }
found=$(mktemp -d "${TMPDIR:-/tmp}/trireme-fuzz-XXXXXX")
trap 'rm -rf "$found"' EXIT
mkdir -p build/fuzz "$found/new"

# LibTorch is not built with AddressSanitizer: of vectors that both it and our code change, the marks are wrong. Its
# libraries define some objects twice.
export ASAN_OPTIONS=detect_container_overflow=0:detect_odr_violation=0
export UBSAN_OPTIONS=print_stacktrace=1
common=(-max_len=4096 -timeout=20 -rss_limit_mb=3000 -dict=tests/fuzz/json.dict)
"$program" "${common[@]}" "${limits[@]}" -print_final_stats=1 -verbosity=1 \
  -artifact_prefix="build/fuzz/$target-" "$found/new" "$corpus"
[ "$keep" = --keep ] || exit 0
# The seeds, and of all else one input for each edge of the code: a file for each count of an edge would be thousands.
python3 scripts/make_fuzz_corpus.py "$found/seeds"
"$program" "${common[@]}" -merge=1 -use_counters=0 "$found/seeds/$target" "$corpus" "$found/new"
rm -f "$corpus"/*
cp "$found/seeds/$target"/* "$corpus"
