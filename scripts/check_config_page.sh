#!/usr/bin/env bash
# docs/config.md is written by the command from the field tables: fails when the two differ.
#   scripts/check_config_page.sh TRIREME
set -euo pipefail
cd "$(dirname "$0")/.."
if diff -u docs/config.md <("$1" config --markdown); then
  echo "docs/config.md is what the command writes"
else
  echo "docs/config.md is stale: $1 config --markdown > docs/config.md"
  exit 1
fi
