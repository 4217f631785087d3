#!/usr/bin/env python3
"""Compares Trireme with a PyTorch program that does the same work, in turn on one machine. Prints a table and JSON.

    bench/vs_pytorch.py speed    --data BEANS [--rounds 3]     ViT-tiny, 224 px, batch 8 per rank, 2 ranks of 1 thread
    bench/vs_pytorch.py accuracy --data BEANS                  a small ViT at 64 px for 20 epochs

BEANS is an image folder (docs/data.md). The peers are Python programs given by --peer (or the variable PEER); by default
../shared/bench/vit_ddp.py and vit_accuracy.py beside the project. They run under torchrun of --python's environment,
which needs bench/requirements.txt.

Measured for both programs, from outside where possible:
  step_s     median time between steps, without the first two; Trireme: `time` in metrics.jsonl
  first_s    from exec of the launcher (`trireme`, torchrun) to the end of the first step
  rss_mb     peak resident memory of a rank (the largest of them)
  epoch_s    median time from one epoch's end to the next, evaluation included
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

SPEED = """
[run]
dir = "{dir}"
keep_checkpoints = 0
device = "{device}"
[model]
name = "vit"
size = "{size}"
[data]
name = "image_folder"
path = "{data}"
image_size = 224
[train]
max_steps = {steps}
epochs = 1000
global_batch = {global_batch}
micro_batch = {batch}
drop_last = true
[optimizer]
lr = 2e-4
weight_decay = 0.05
"""

ACCURACY = """
[run]
dir = "{dir}"
seed = {seed}
keep_checkpoints = 0
device = "{device}"
[model]
name = "vit"
hidden_size = 192
num_layers = 6
num_heads = 3
intermediate_size = 768
patch_size = 8
[data]
name = "image_folder"
path = "{data}"
image_size = 64
flip = true
[train]
epochs = {epochs}
global_batch = 32
drop_last = true
[optimizer]
lr = 5e-4
weight_decay = 0.05
[schedule]
name = "cosine"
warmup_ratio = 0.1
"""


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("mode", choices=["speed", "accuracy"])
    p.add_argument("--data", required=True, help="the image folder")
    p.add_argument("--peer", default=os.environ.get("PEER"), help="the peer program")
    p.add_argument("--python", help="interpreter of the peer (default: TRIREME_VENV's, then this one)")
    p.add_argument("--trireme", default=ROOT / "build/release/bin/trireme", type=Path)
    p.add_argument("--rounds", type=int, help="number of runs of each program (default: speed 3, accuracy 1)")
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--size", default="tiny")
    p.add_argument("--batch", type=int, default=8, help="samples per rank and step (speed)")
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--epochs", type=int, default=20)
    p.add_argument("--seed", type=int, default=42)
    p.add_argument("--device", default="cpu")
    p.add_argument("--only", choices=["trireme", "peer"], help="run one of the two")
    p.add_argument("--out", type=Path, help="also write the JSON here")
    a = p.parse_args()
    a.rounds = a.rounds or (3 if a.mode == "speed" else 1)
    if not a.peer:
        a.peer = ROOT.parent / "shared/bench" / ("vit_ddp.py" if a.mode == "speed" else "vit_accuracy.py")
    if not a.python:
        venv = Path(os.environ.get("TRIREME_VENV", Path.home() / ".cache/trireme/venv")) / "bin/python"
        a.python = venv if venv.exists() else sys.executable
    a.data = Path(a.data).resolve()
    for what, path in [("data", a.data), ("peer", Path(a.peer)), ("trireme", a.trireme)]:
        if not path.exists() and not (a.only and what in ("peer", "trireme") and what != a.only):
            p.error(f"{path} does not exist (--{what})")
    return a


def measuring(description):
    """The options that the programs have in common which measure runs of Trireme alone."""
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--folder", help="where the files of the measurement are, while it runs (default: TMPDIR)")
    p.add_argument("--trireme", default=ROOT / "build/release/bin/trireme", type=Path)
    p.add_argument("--python", default=sys.executable, help="interpreter whose versions are recorded")
    p.add_argument("--out", type=Path, help="also write the JSON here")
    return p


def run(command, **more):
    """Runs a command and returns (stdout, seconds). If the command fails, exits with its output."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", **more}
    start = time.time()
    done = subprocess.run([str(c) for c in command], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"failed ({done.returncode}): {' '.join(map(str, command))}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout, time.time() - start


def lines_of(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def trireme(a, folder):
    """Runs Trireme once and returns its metrics, its summary and its start time."""
    template = SPEED if a.mode == "speed" else ACCURACY
    config = Path(folder, "config.toml")
    config.write_text(template.format(dir=Path(folder, "run"), data=a.data, size=a.size, steps=a.steps, batch=a.batch,
                                      global_batch=a.batch * a.ranks, epochs=a.epochs, seed=a.seed, device=a.device))
    start = time.time()
    run([a.trireme, "train", config, "--ranks", a.ranks])
    metrics = lines_of(Path(folder, "run/metrics.jsonl").read_text())
    return metrics, json.loads(Path(folder, "run/summary.json").read_text()), start


def trireme_speed(a):
    with tempfile.TemporaryDirectory() as folder:
        metrics, summary, start = trireme(a, folder)
    at = [line["time"] for line in metrics if line["kind"] == "step"]
    return {"step_s": statistics.median(b - e for e, b in zip(at[1:], at[2:])), "first_s": at[0] - start,
            "rss_mb": max(rank["peak_rss_bytes"] for rank in summary["ranks"]) / 2**20}


def peer_speed(a):
    out, _ = run([a.python, "-m", "torch.distributed.run", "--nproc-per-node", a.ranks, a.peer, "--data", a.data,
                  "--size", a.size, "--batch", a.batch, "--steps", a.steps], T0=str(time.time()))
    line = lines_of(out)[-1]
    return {"step_s": line["step_s"], "first_s": line["first_step_s"], "rss_mb": line["rss_mb"]}


def per_epoch(ends):
    return statistics.median(b - e for e, b in zip(ends, ends[1:]))


def trireme_accuracy(a):
    with tempfile.TemporaryDirectory() as folder:
        metrics, summary, _ = trireme(a, folder)
    evals = [line for line in metrics if line["kind"] == "eval" and line["split"] == "validation"]
    return {"epoch_s": per_epoch([line["time"] for line in evals]), "train_loss": evals[-1]["train_loss"],
            "validation": evals[-1]["accuracy"], "best_validation": max(line["accuracy"] for line in evals),
            "test": summary["final"].get("test_accuracy")}


def peer_accuracy(a):
    out, _ = run([a.python, "-m", "torch.distributed.run", "--nproc-per-node", a.ranks, a.peer, "--data", a.data,
                  "--image", 64, "--patch", 8, "--hidden", 192, "--layers", 6, "--heads", 3, "--batch", 32, "--lr", 5e-4,
                  "--wd", 0.05, "--epochs", a.epochs, "--seed", a.seed])
    lines = lines_of(out)
    return {"epoch_s": per_epoch([line["s"] for line in lines]), "train_loss": lines[-1]["loss"],
            "validation": lines[-1]["val"], "best_validation": max(line["val"] for line in lines),
            "test": lines[-1]["test"]}


def machine(a):
    def said(*command):
        try:
            return subprocess.run([str(c) for c in command], capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return None
    cpu = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("model name")), platform.machine())
    versions = "import torch, json; print(json.dumps({'python': __import__('platform').python_version(), 'torch': torch.__version__}))"
    peer = said(a.python, "-c", versions)
    return {"cpu": cpu, "cores": os.cpu_count(), "load_before": round(os.getloadavg()[0], 2),
            "commit": said("git", "-C", ROOT, "rev-parse", "--short", "HEAD"),
            "trireme": said(a.trireme, "--version"), "peer": json.loads(peer) if peer else None,
            "date": time.strftime("%Y-%m-%d")}


def show(result, out):
    """Prints a result as JSON, and writes it to the file `out` if that is given."""
    text = json.dumps(result, indent=2)
    print(text)
    if out:
        out.write_text(text + "\n")


def main():
    a = arguments()
    measure = {"trireme": trireme_speed if a.mode == "speed" else trireme_accuracy,
               "peer": peer_speed if a.mode == "speed" else peer_accuracy}
    names = [a.only] if a.only else ["trireme", "peer"]
    result = {"mode": a.mode, "machine": machine(a),
              "arguments": {k: str(v) for k, v in vars(a).items() if k in
                            ("ranks", "rounds", "device") + (("size", "batch", "steps") if a.mode == "speed" else ("epochs", "seed"))}}
    rounds = {name: [] for name in names}
    for number in range(a.rounds):
        for name in names if number % 2 == 0 else reversed(names):
            rounds[name].append(measure[name](a))
            print(f"round {number + 1} {name:8}", "  ".join(f"{k} {v:.4g}" for k, v in rounds[name][-1].items() if v is not None),
                  file=sys.stderr, flush=True)
    for name in names:
        keys = rounds[name][0].keys()
        result[name] = {k: statistics.median(r[k] for r in rounds[name]) if rounds[name][0][k] is not None else None for k in keys}
        result[f"{name}_rounds"] = rounds[name]
    if len(names) == 2:
        timed = [k for k in ("step_s", "first_s", "rss_mb", "epoch_s") if k in result["trireme"]]
        result["ratio"] = {k: result["trireme"][k] / result["peer"][k] for k in timed}
        print(f"\n{'':16}{'Trireme':>12}{'PyTorch':>12}{'ratio':>9}")
        for k in result["trireme"]:
            ours, theirs = result["trireme"][k], result["peer"][k]
            ratio = f"{ours / theirs:9.3f}" if k in timed else ""
            print(f"{k:16}{ours:12.4f}{theirs:12.4f}{ratio}" if ours is not None else f"{k:16}{'-':>12}{theirs:12.4f}")
        print()
    show(result, a.out)


if __name__ == "__main__":
    main()
