#!/usr/bin/env bash
# Runs the tests many times, first with a busy loop on each core, then on a quiet machine, and reports each failure. A
# test that fails in some rounds is flaky: it waits for too short a time, or expects what only usually happens.
#   scripts/stress_tests.sh [--times N] [CTEST ARGUMENT...]
#     --times N     rounds of each kind; 5 if it is not given
#   scripts/stress_tests.sh --times 20 -R '^stop_test$'
# The build is build/release, or TRIREME_BUILD. The outputs of all rounds are in its folder stress. Long tests and those
# of speed and of GPUs are left out. Exit code 1: a test failed.
set -euo pipefail
# shellcheck disable=SC2034  # common.sh reads it
step=stress_tests.sh
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

times=5
arguments=()
while [ $# -gt 0 ]; do
  case $1 in
    --times)
      times=${2:-}
      [[ $times =~ ^[1-9][0-9]*$ ]] || { say "--times $times: expected a whole number from 1"; exit 2; }
      shift
      ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) arguments+=("$1") ;;
  esac
  shift
done
build=${TRIREME_BUILD:-$root/build/release}
[ -f "$build/CTestTestfile.cmake" ] || { say "$build: no build with tests; run cmake --build --preset release"; exit 2; }
logs=$build/stress
rm -rf "$logs"
mkdir -p "$logs"

loops=()
end_loops() {
  [ ${#loops[@]} = 0 ] || kill "${loops[@]}" 2>/dev/null || true
  loops=()
}
trap 'end_loops; rm -rf "${tests_folder:-/nonexistent}"' EXIT
write_tests_to_memory

jobs=$(jobs_here)
[ "$jobs" -ge 2 ] || jobs=2
failures=()
for kind in busy quiet; do
  at_once=$jobs
  if [ $kind = busy ]; then
    at_once=$((2 * jobs))  # so that the tests get most of the cores beside the loops
    for ((core = 0; core < $(nproc); ++core)); do
      while :; do :; done &
      loops+=($!)
    done
  else
    end_loops
  fi
  for ((round = 1; round <= times; ++round)); do
    log=$logs/$kind-$round
    if ctest --test-dir "$build" -LE 'long|time|gpu' -j "$at_once" --output-on-failure --no-tests=error \
      --output-junit "$log.xml" "${arguments[@]}" >"$log.log" 2>&1 </dev/null; then
      say "$kind, round $round of $times: passed"
      continue
    fi
    failed=$(python3 - "$log.xml" <<'PY' || true
import sys, xml.etree.ElementTree as tree
print(" ".join(case.get("name") for case in tree.parse(sys.argv[1]).getroot() if case.get("status") == "fail"))
PY
    )
    say "$kind, round $round of $times: ${failed:-ctest} failed; its output: $log.log"
    for test in ${failed:-ctest}; do failures+=("$kind $test"); done
  done
done
[ ${#failures[@]} -gt 0 ] || { say "no failure in $((2 * times)) rounds"; exit 0; }
say "failures, by test and kind of round:"
printf '%s\n' "${failures[@]}" | sort | uniq -c | sort -rn
exit 1
