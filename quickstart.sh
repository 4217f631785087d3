#!/usr/bin/env bash
# From a fresh Debian 12 or Ubuntu 24.04 machine to a trained model, in one command:
#   ./quickstart.sh                 set-up, build, train a small ViT on generated leaf images on 2 ranks, evaluate
#   ./quickstart.sh --train-only    the training and evaluation alone, with what is built already
# Environment: TRIREME_VENV, Torch_DIR, CMAKE_PREFIX_PATH as in scripts/setup.sh. Safe to run again.
# Exit code 0: it trained, and reached more than 90 % of the validation images.
set -euo pipefail
step=quickstart
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/scripts/common.sh"
cd "$root"

train_only=false
for argument in "$@"; do
  case $argument in
    --train-only) train_only=true ;;
    -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) say "no option $argument (known: --train-only, --help)"; exit 2 ;;
  esac
done

if [ "$train_only" = false ]; then
  scripts/setup.sh
  build release trireme_product
fi
trireme=build/release/bin/trireme
if [ ! -x "$trireme" ]; then
  say "$trireme is not built: run ./quickstart.sh without --train-only first"
  exit 2
fi

# The command starts the ranks itself, and takes GPUs when there are any ([run] device = "auto").
say "$trireme train configs/leaves_vit.toml --ranks 2"
"$trireme" train configs/leaves_vit.toml --ranks 2
say "$trireme eval runs/leaves_vit"
"$trireme" eval runs/leaves_vit

accuracy=$(python3 - runs/leaves_vit/metrics.jsonl <<'PY'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
print(max(line["accuracy"] for line in lines if line["kind"] == "eval" and line["split"] == "validation"))
PY
)
if ! awk -v a="$accuracy" 'BEGIN {exit !(a > 0.9)}'; then
  say "the model reached only $accuracy of the validation images; above 0.9 is usual (run ./test.sh to find out why)"
  exit 1
fi
cat <<NEXT

It works: best validation accuracy $(awk -v a="$accuracy" 'BEGIN {printf "%.1f %%", 100 * a}'). What to try next:
  $trireme train configs/leaves_vit.toml --ranks 4 --set train.micro_batch=4
        the same numbers on another layout
  $trireme config configs/leaves_vit.toml --print
        every setting of that run, with its defaults; --explain train describes the keys of [train]
  $trireme plugins
        the ways to run on many ranks, and their options
  ./test.sh
        the tests
README.md describes how to train on your own images (configs/beans_vit_tiny.toml).
NEXT
