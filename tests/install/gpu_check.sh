#!/usr/bin/env bash
# Runs scripts/gpu_check.sh with the CPU in the GPU's place, and checks every section's verdict in its report.
#   gpu_check.sh BUILD
set -euo pipefail
build=$(cd "$1" && pwd)
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
check=$source/scripts/gpu_check.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TRIREME_BUILD=$build

refuses() {  # WORDS ARGUMENT...
  local code=0
  "$check" "${@:2}" >"$work/said" 2>&1 || code=$?
  [ "$code" = 2 ] && grep -qF -- "$1" "$work/said" || { echo "exit code $code, and not: $1"; cat "$work/said"; exit 1; }
}
refuses "OUT is missing" --dry
refuses "no option --wet" --wet "$work/out"
refuses "--seconds 0: expected a whole number" --seconds 0 "$work/out"
for row in 'kernel|machine,kernel' '|machine,,kernels' '|machine,' '|' 'machine kernels.draw|machine kernels.draw' 'speed.*|speed.*'; do
  refuses "--sections: no section \"${row%%|*}\"; known: machine whole_run kernels.fused" --dry --sections "${row#*|}" "$work/out"
done
refuses "--peer: no such file" --peer "$work/none.py" "$work/out"
CUDA_VISIBLE_DEVICES='' refuses "no GPU here" "$work/out"
"$check" --help >"$work/said"
grep -q '^Checks Trireme on' "$work/said"
tail -n 1 "$work/said" | grep -q 'is missing\.$'
# Nothing has run when no section had time to.
code=0
"$check" --dry --seconds 08 --sections "machine, kernels.draw" "$work/none" >"$work/said" 2>&1 || code=$?
if [ "$code" != 1 ] || ! grep -q '^gpu_check.sh: no section had time to run' "$work/said" || grep -q '^grep:' "$work/said" ||
  [ "$(grep -c skipped "$work/none/table.txt")" != 2 ]; then
  echo "exit code $code"
  cat "$work/said"
  exit 1
fi

cat >"$work/peer.py" <<'PY'
import json, sys
print(json.dumps({"model": "vit", "given": sys.argv[1:]}))
PY
"$check" --dry --seconds 500 --peer "$work/peer.py" "$work/out" || { cat "$work/out/report.md"; exit 1; }
python3 - "$work/out" <<'PY'
import json, os, sys, tarfile
report = json.load(open(sys.argv[1] + "/report.json"))
sections = {s["name"]: s for s in report["sections"]}
without_gpu = {"kernels.fused", "kernels.draw", "kernels.dropout", "kernels.offload", "kernels.staging", "host_sync", "speed.tf32",
               "sanitizer.memcheck", "sanitizer.racecheck"}
passed = {"machine", "whole_run", "precisions", "layouts.first", "nccl.comm", "nccl.dp2_zero3", "nccl.tp2_pp2_zbv", "speed.bf16",
          "speed.pure", "speed.fused", "speed.cudnn", "speed.tiny", "peer", "loading", "races.zero3", "races.offload", "suites.zero",
          "suites.hybrid", "kernel_speed", "layouts.bf16", "layouts.others", "nccl.others", "suites.others",
          "suites.models", "suites.transformers", "loader", "gemini"}
expected = {**dict.fromkeys(without_gpu, "not possible here"), **dict.fromkeys(passed, "passed")}
assert {n: s["verdict"] for n, s in sections.items()} == expected, {n: (s["verdict"], s["why"]) for n, s in sections.items()}
assert all(sections[n]["why"] for n in without_gpu), sections
assert report["device"] == "cpu" and "LibTorch" in report["machine"], report
for name, count in {"kernel_speed": 1, "speed.bf16": 1, "peer": 1, "loading": 2, "loader": 1, "gemini": 3}.items():
    assert len(sections[name]["numbers"]) == count, sections[name]
assert all(n["samples_per_s"] > 0 and n["peak_tensor_mib"] > 0 for n in sections["gemini"]["numbers"]), sections["gemini"]
assert sections["peer"]["numbers"][0]["given"][:2] == ["--device", "cpu"], sections["peer"]
assert sorted(os.listdir(sys.argv[1])) == ["logs.tgz", "report.json", "report.md", "table.txt"], os.listdir(sys.argv[1])
logs = tarfile.open(sys.argv[1] + "/logs.tgz").getnames()
assert all("logs/" + n + "/log" in logs for n in sections), logs
# A library that is missing is named by the first section.
assert "no library is missing" in sections["machine"]["why"], sections["machine"]
PY

# Whoever ends the check half-way finds what it knew. The section that has no time is skipped.
"$check" --dry --seconds 35 --sections kernels.draw,layouts "$work/short" >"$work/said" || { cat "$work/said"; exit 1; }
grep -q '^kernels.draw .* not possible here' "$work/short/table.txt"
grep -q '^layouts.first .* skipped .* less than a third of its 90 s was left' "$work/short/table.txt"
mkdir "$work/tmp"
TMPDIR=$work/tmp "$check" --dry --sections machine,layouts.first "$work/ended" >"$work/said" &
until [ -s "$(echo "$work"/tmp/*/logs/layouts.first/log)" ]; do
  kill -0 $! || { cat "$work/said"; exit 1; }
  sleep 0.1
done
kill $!
wait $! && { echo "it was ended, and exit code 0"; exit 1; }
grep -q '^machine .* passed' "$work/ended/table.txt"
grep -q '^layouts.first .* stopped .* the check was ended' "$work/ended/table.txt"
tar tzf "$work/ended/logs.tgz" logs/layouts.first/log >/dev/null

# In a build of its own: a section that fails with a CUDA error is repeated, and a program whose library is missing is named.
mkdir -p "$work/broken/libexec/trireme/tests"
ln -s "$build/bin" "$build/lib" "$work/broken/"
cp -L "$build/libexec/trireme/tests/fused_gpu_test" "$work/broken/libexec/trireme/tests/"
patchelf --add-needed libgone.so.1 "$work/broken/libexec/trireme/tests/fused_gpu_test"
printf '#!/bin/sh\necho CUDA error: misaligned address, blocking $CUDA_LAUNCH_BLOCKING\nexit 1\n' >"$work/broken/libexec/trireme/tests/draw_gpu_test"
chmod +x "$work/broken/libexec/trireme/tests/draw_gpu_test"
code=0
TRIREME_BUILD=$work/broken "$check" --dry --sections machine,kernels.draw "$work/failed" || code=$?
[ "$code" = 1 ] && grep -q '^machine .* failed .* libgone.so.1 => not found' "$work/failed/table.txt"
grep -q 'misaligned address, blocking 1' "$work/failed/report.md"

# What a section is for: two runs that are not the same fail, and a section that takes too long is stopped.
runs=$work/runs
for run in a b; do
  mkdir -p "$runs/$run/model"
  printf '{"kind": "step", "loss": 1.0, "grad_norm": 2.0}\n' >"$runs/$run/metrics.jsonl"
  python3 - "$runs/$run/model/model.safetensors" "$run" <<'PY'
import json, struct, sys
header = json.dumps({"w": {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]}}).encode()
values = struct.pack("<2d", 1.0, 1.0 + (1e-11 if sys.argv[2] == "b" else 0.0))
open(sys.argv[1], "wb").write(struct.pack("<Q", len(header)) + header + values)
PY
done
python3 "$source/scripts/gpu_report.py" same "$runs/a" "$runs/a" 1e-12
python3 "$source/scripts/gpu_report.py" same "$runs/a" "$runs/b" 1e-10
if python3 "$source/scripts/gpu_report.py" same "$runs/a" "$runs/b" 1e-12; then echo "1e-11 apart, and taken as the same"; exit 1; fi
printf 'one\tOne\t124\t9\t9\ntwo\tTwo\t1\t1\t9\nthree\tThree\tskipped\t0\t9\n' >"$runs/verdicts"
mkdir -p "$runs/logs/two"
printf 'the last words\n' >"$runs/logs/two/log"
python3 "$source/scripts/gpu_report.py" page "$runs" "$runs"
grep -q '| timed out | 9 | after 9 s; its limit is 9 s |' "$runs/report.md"
grep -q '| failed | 1 | exit code 1' "$runs/report.md"
grep -q '^the last words' "$runs/report.md"
grep -q '| skipped | 0 | less than a third of its 9 s was left |' "$runs/report.md"
