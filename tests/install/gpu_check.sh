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
refuses "--minutes 0: expected a whole number" --minutes 0 "$work/out"
refuses "--peer $work/none.py: no such file" --peer "$work/none.py" "$work/out"
CUDA_VISIBLE_DEVICES='' refuses "no GPU here" "$work/out"

cat >"$work/peer.py" <<'PY'
import json, sys
print(json.dumps({"model": "vit", "given": sys.argv[1:]}))
PY
"$check" --dry --minutes 30 --peer "$work/peer.py" "$work/out" || { cat "$work"/out/*/log | tail -n 100; cat "$work/out/report.md"; exit 1; }
python3 - "$work/out/report.json" "$(unshare --uts true 2>/dev/null && echo passed || echo 'not possible here')" <<'PY'
import json, sys
report = json.load(open(sys.argv[1]))
without_gpu = "not possible here"
expected = {"kernels": without_gpu, "sanitizer": without_gpu, "layouts_fp64": "passed", "layouts_bf16": "passed", "races": "passed",
            "nccl": sys.argv[2], "host_sync": without_gpu, "suites": "passed", "kernel_speed": "passed", "train_speed": "passed",
            "loader": "passed", "gemini": "passed"}
sections = {s["name"]: s for s in report["sections"]}
assert {n: s["verdict"] for n, s in sections.items()} == expected, {n: (s["verdict"], s["why"]) for n, s in sections.items()}
assert report["dry"] is True and "LibTorch" in report["machine"], report
for name, section in sections.items():
    assert section["why"], name
for name, count in {"kernel_speed": 2, "train_speed": 2, "loader": 1, "gemini": 3}.items():
    assert len(sections[name]["numbers"]) == count, sections[name]
assert all(n["samples_per_s"] > 0 and n["peak_tensor_mib"] > 0 for n in sections["gemini"]["numbers"]), sections["gemini"]
assert sections["train_speed"]["numbers"][1]["given"][:2] == ["--device", "cpu"], sections["train_speed"]
PY

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
printf 'one\tOne\t124\t9\t9\ntwo\tTwo\t1\t1\t9\nthree\tThree\t124\t0\t0\n' >"$runs/verdicts"
if python3 "$source/scripts/gpu_report.py" page "$runs"; then echo "a failed section, and exit code 0"; exit 1; fi
grep -q '| timed out | 9 | stopped after 9 of 9 s |' "$runs/report.md"
grep -q '| failed | 1 | exit code 1' "$runs/report.md"
grep -q '| timed out | 0 | the minutes were used up before it |' "$runs/report.md"
