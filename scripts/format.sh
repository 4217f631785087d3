#!/usr/bin/env bash
# Formats the C++ sources in place with the project's .clang-format; --check changes nothing and fails on a difference.
# Other versions of clang-format lay code out differently: only version 14 (Debian 12's) is used. Exit code 77: none.
set -euo pipefail
cd "$(dirname "$0")/.."
wanted=14
for clang_format in clang-format-$wanted clang-format none; do
  if "$clang_format" --version 2>/dev/null | grep -q "version $wanted\."; then break; fi
done
if [ "$clang_format" = none ]; then
  echo "SKIPPED: no clang-format $wanted here, so the layout of the sources was not checked (apt-get install clang-format-$wanted)"
  exit 77
fi
mapfile -t files < <(git ls-files --cached --others --exclude-standard '*.h' '*.cpp' '*.cu' '*.cuh' | while read -r f; do [ ! -f "$f" ] || echo "$f"; done)
if [ "${1:-}" = --check ]; then
  wrong=0
  for file in "${files[@]}"; do
    "$clang_format" "$file" | cmp -s - "$file" || { echo "$file: not in the project's format (scripts/format.sh mends it)"; wrong=1; }
  done
  [ $wrong = 0 ] && echo "${#files[@]} files are in the project's format"
  exit $wrong
fi
"$clang_format" -i "${files[@]}"
