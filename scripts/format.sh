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
  # One process for all files: a start takes longer than a file.
  if ! wrong=$("$clang_format" --dry-run -Werror "${files[@]}" 2>&1); then
    sed -nE "s/^([^:]+):[0-9]+:[0-9]+: error: .*/\\1: not in the project's format (scripts\\/format.sh mends it)/p" <<<"$wrong" | sort -u
    exit 1
  fi
  echo "${#files[@]} files are in the project's format"
  exit
fi
"$clang_format" -i "${files[@]}"
