#!/usr/bin/env bash
# Makes the machine ready, builds everything, runs the tests. The last line is "N passed, N failed, N skipped".
#   ./test.sh                every test but the long ones and those of speed; those of a GPU where there is one
#   ./test.sh --long         these too, on a machine that does nothing else
#   ./test.sh --asan         the unit tests under AddressSanitizer and UBSan (a build of its own, build/asan)
#   ./test.sh -R NAME ...    what follows is handed to ctest: -R, -E, -V, --repeat ...
# Where the variable CI is set, warnings are errors.
set -uo pipefail
step=test
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/scripts/common.sh"
cd "$root" || exit 1

preset=release
targets=all
include=
exclude='long|time|gpu'
ctest_arguments=()
while [ $# -gt 0 ]; do
  case $1 in
    --long) exclude=gpu ;;
    --asan) preset=asan targets=trireme_unit_tests include=unit ;;
    -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) ctest_arguments+=("$1") ;;
  esac
  shift
done

# The closing line, kept for whoever runs this script as a part of more.
finish() {
  mkdir -p "$root/build"
  printf '%s\n' "$2" | tee "$root/build/test-summary.txt"
  exit "$1"
}

scripts/setup.sh || { status=$?; say "the set-up did not succeed"; printf '0 passed, 1 failed\n' >build/test-summary.txt; echo '0 passed, 1 failed'; exit $status; }
configure=()
[ -z "${CI:-}" ] || configure+=(-DTRIREME_WERROR=ON)
build "$preset" "$targets" -- "${configure[@]}" || finish 1 '0 passed, 1 failed'

if nvidia-smi -L >/dev/null 2>&1 && [ "$preset" = release ]; then
  exclude=${exclude%|gpu}
  [ "$exclude" != gpu ] || exclude='^$'
else
  say "no GPU here: the tests labelled gpu are left out"
fi
if [ "$preset" = asan ]; then
  # LibTorch keeps what it allocates at load time until the process ends: leaks are not looked for.
  export ASAN_OPTIONS=detect_leaks=0:abort_on_error=0:detect_odr_violation=0
  export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
fi
trap 'rm -rf "${tests_folder:-/nonexistent}"' EXIT
write_tests_to_memory
# Two tests at a time at least: most of them wait, some of the time.
jobs=$(jobs_here)
[ "$jobs" -ge 2 ] || jobs=2
report=$root/build/$preset-tests.xml
rm -f "$report"
[ -z "$include" ] || ctest_arguments+=(-L "$include")
ctest --test-dir "build/$preset" -LE "$exclude" -j "$jobs" --output-on-failure --no-tests=error \
  --output-junit "$report" "${ctest_arguments[@]}" </dev/null
status=$?

# A test that was not run (its program is missing) counts as failed; one that said "nothing to check here" as skipped.
counts=$(python3 - "$report" <<'PY'
import sys, xml.etree.ElementTree as tree
try:
    cases = tree.parse(sys.argv[1]).getroot().findall("testcase")
except (OSError, tree.ParseError):
    print("0 passed, 1 failed")
    sys.exit()
kinds = [case.get("status") for case in cases]
skipped = [case for case in cases if case.get("status") in ("notrun", "disabled") and
           "SKIP_RETURN_CODE" in "".join(skip.get("message", "") for skip in case.findall("skipped"))]
passed = kinds.count("run")
print(f"{passed} passed, {len(kinds) - passed - len(skipped)} failed" + (f", {len(skipped)} skipped" if skipped else ""))
PY
)
case $counts in *' 0 failed'*) ;; *) [ "$status" != 0 ] || status=1 ;; esac
finish "$status" "$counts"
