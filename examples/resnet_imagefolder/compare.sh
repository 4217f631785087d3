#!/usr/bin/env bash
# Trains a ResNet on a folder of images in several ways, one after the other, and prints a table of their times, memory
# and accuracy. Then it stops a run in the middle of an epoch, resumes it, and compares the weights bit for bit.
#
#   compare.sh [--data FOLDER] [--epochs N] [--out FOLDER] [--hosts A:2,B:2] [--set KEY=VALUE]...
#
# --data    train/, validation/ (or val/) and, if there is one, test/, each with a folder for each class; data/flowers
# --epochs  3
# --out     receives a run folder and a log for each way, and table.md; runs/compare
# --hosts   real hosts for the row of several hosts, which share this folder; unset: two that this machine plays
# --set     a setting for all runs, such as model.depth=50
# TRIREME   the program; by default trireme of the PATH, else of build/release
#
# Exit code 1: a way failed, or the resumed run has other weights; 2: the arguments, or the configuration, are wrong. A
# way that this machine cannot go is left out.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
data=data/flowers epochs=3 out=runs/compare hosts='' settings=()
fail() { echo "compare.sh: $*" >&2; exit 2; }
while [ $# -gt 0 ]; do
  case $1 in --data | --epochs | --out | --hosts | --set) [ $# -gt 1 ] || fail "$1 needs a value" ;; esac
  case $1 in
    --data) data=$2 ;;
    --epochs) epochs=$2 ;;
    --out) out=$2 ;;
    --hosts) hosts=$2 ;;
    --set) settings+=(--set "$2") ;;
    -h | --help) sed -n '2,/^set -/{/^set -/!s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) fail "no option \"$1\"; there are --data, --epochs, --out, --hosts and --set" ;;
  esac
  shift 2
done
trireme=${TRIREME:-$(command -v trireme || echo "$here/../../build/release/bin/trireme")}
[ -x "$trireme" ] || fail "no program trireme on the PATH or in build/release; build it, or set TRIREME"
[ -d "$data/train" ] || fail "$data has no folder train/; name a folder of images with --data FOLDER"
[[ $epochs =~ ^[1-9][0-9]*$ ]] || fail "--epochs $epochs: expected a whole number, at least 1"
[ ! -e "$out/one_device.log" ] || fail "$out has an earlier comparison; name another folder with --out"
reason=$(mkdir -p "$out" 2>&1) || fail "--out $out: ${reason#mkdir: }"
[ -w "$out" ] || fail "--out $out: the folder cannot be written"
out=$(cd "$out" && pwd) data=$(cd "$data" && pwd) trireme=$(realpath "$trireme")

# A device is a GPU or, without GPUs, one core: otherwise one CPU rank alone would use all cores.
gpus=$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU' || true)
if [ "$gpus" -gt 0 ]; then
  machine="$gpus x $(nvidia-smi --query-gpu=name --format=csv,noheader | head -1)"
else
  machine="$(nproc) CPU cores, of which each rank uses one"
  settings+=(--set run.device=cpu --set run.threads=1)
fi

rows=() failed=0 job=
# A signal to this script alone also ends the run, which a shell would wait for in the foreground.
in_background() {
  "$@" &
  job=$!
  local code=0
  wait $job || code=$?
  job=
  return $code
}
# The shell lists a job as soon as it is started, before $job is set.
# shellcheck disable=SC2046,SC2317  # several numbers; the traps call it
stop() {  # stop EXIT_CODE
  trap - HUP INT TERM
  { kill -TERM $(jobs -pr) 2>/dev/null && wait; } || true
  exit "$1"
}
trap 'stop 129' HUP
trap 'stop 130' INT
trap 'stop 143' TERM

train_in() {  # train_in NAME: the arguments of trireme for a run in OUT/NAME
  words=(train "$here/resnet_imagefolder.toml" --set run.dir="$out/$1" --set data.path="$data"
    --set train.epochs="$epochs" "${settings[@]}")
}
way() {  # way NAME LABEL DEVICES COMMAND...: a run whose folder is OUT/NAME
  local name=$1 label=$2 devices=$3 code=0
  shift 3
  echo "$label ..." >&2
  in_background "$@" >"$out/$name.log" 2>&1 || code=$?
  if [ $code = 0 ]; then
    rows+=("$label=$devices=$out/$name")
    return
  fi
  echo "  failed; the end of $out/$name.log:" >&2
  tail -n 3 "$out/$name.log" | sed 's/^/  /' >&2
  failed=1
  # A wrong setting of the first way is wrong in all of them.
  if [ $code = 2 ] && [ "$name" = one_device ]; then exit 2; fi
}
left_out() { echo "$1 is left out: $2" >&2; }

train_in one_device
way one_device "one device" 1 "$trireme" "${words[@]}"

train_in data_parallel
way data_parallel "data_parallel, 1 process with 2 replicas" 2 "$trireme" "${words[@]}" \
  --set parallel.plugin=data_parallel --set plugin.data_parallel.replicas=2 --set model.sync_batch_norm=false

for ranks in 2 4; do
  train_in ddp_$ranks
  way ddp_$ranks "torch_ddp, $ranks ranks" $ranks "$trireme" "${words[@]}" --ranks $ranks
done

train_in mixed
if [ "$gpus" -gt 0 ]; then  # fp16 has a dynamic loss scale
  way mixed "torch_ddp, 2 ranks, fp16" 2 "$trireme" "${words[@]}" --ranks 2 --set train.precision=fp16
elif grep -qwE 'avx512_bf16|amx_bf16' /proc/cpuinfo; then
  way mixed "torch_ddp, 2 ranks, bf16" 2 "$trireme" "${words[@]}" --ranks 2 --set train.precision=bf16
else
  left_out "mixed precision" "this CPU has no instructions for bf16, which would be slower than fp32 here"
fi

train_in hosts
if [ -n "$hosts" ]; then
  ranks=0
  for host in ${hosts//,/ }; do
    if [[ $host =~ :([0-9]+)$ ]]; then ranks=$((ranks + BASH_REMATCH[1])); else ranks=$((ranks + 1)); fi
  done
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  way hosts "torch_ddp, $hosts" "$ranks" mpirun -n "$ranks" --host "$hosts" "$trireme" "${words[@]}"
elif [ "$gpus" -gt 0 ]; then
  left_out "two hosts" "two hosts that one machine plays would share its GPUs; name real ones with --hosts A:2,B:2"
elif reason=$("$here/two_hosts.sh" true 2>&1); then
  way hosts "torch_ddp, 2 hosts x 2 ranks" 4 "$here/two_hosts.sh" \
    mpirun -n 4 --host a:2,b:2 --quiet "$trireme" "${words[@]}"
else
  left_out "two hosts" "$reason"
fi

# The run that is stopped is the one of two ranks again.
stop_and_resume() {
  local steps every stop_at code=0 last
  steps=$(grep '"kind":"step"' "$out/ddp_2/metrics.jsonl" | grep -c '"epoch":1,')
  stop_at=$(((epochs > 1 ? steps : 0) + (steps + 1) / 2))
  every=$(((steps + 9) / 10))
  train_in stopped
  "$trireme" "${words[@]}" --ranks 2 --set run.checkpoint_every=$every >"$out/stopped.log" 2>&1 &
  job=$!
  until last=$(grep -sc '"kind":"step"' "$out/stopped/metrics.jsonl") && [ "$last" -ge $stop_at ]; do
    kill -0 $job 2>/dev/null || break
    sleep 0.02
  done
  kill -TERM $job 2>/dev/null || true
  wait $job || code=$?
  job=
  last=$(grep -c '"kind":"step"' "$out/stopped/metrics.jsonl" || true)
  if [ -e "$out/stopped/summary.json" ]; then
    echo "the run ended before it could be stopped: try more --epochs"
    return 1
  fi
  echo "stopped by SIGTERM (exit code $code) after step $last; an epoch has $steps"
  in_background "$trireme" "${words[@]}" --ranks 2 --set run.checkpoint_every=$every --resume auto \
    >"$out/resumed.log" 2>&1 || { tail -n 3 "$out/resumed.log"; return 1; }
  grep '^resume ' "$out/resumed.log" || true
  local of_whole of_resumed
  of_whole=$(sha256sum <"$out/ddp_2/model/model.safetensors")
  of_resumed=$(sha256sum <"$out/stopped/model/model.safetensors")
  echo "model.safetensors, never stopped:       ${of_whole%% *}"
  echo "model.safetensors, stopped and resumed: ${of_resumed%% *}"
  [ "$of_whole" = "$of_resumed" ] || { echo "the weights differ"; return 1; }
  echo "the weights are equal, bit for bit"
}

[ ${#rows[@]} -gt 0 ] || { echo "compare.sh: every way failed" >&2; exit 1; }
{
  echo "$(basename "$data"); epochs: $epochs; $machine"
  echo
  python3 "$here/table.py" "${rows[@]}"
} | tee "$out/table.md"
echo
if [ -e "$out/ddp_2/summary.json" ]; then stop_and_resume || failed=1; fi
exit $failed
