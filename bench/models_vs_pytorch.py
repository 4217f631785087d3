#!/usr/bin/env python3
"""Compares the speed of Trireme's models besides the ViT with a PyTorch program, in turn on one machine: JSON.

    bench/models_vs_pytorch.py --model resnet18 --image 160 --batch 8 [--rounds 5] [--out FILE]
    bench/models_vs_pytorch.py --model bert|gpt2|llama --seq 128 --batch 4

The peer is a Python program given by --peer (or the variable PEER), by default ../shared/bench/model_ddp.py beside the
project: torchvision's or transformers' model under DDP over gloo, AdamW, random pixels or tokens. Trireme trains on a
tensors data set of random pixels or tokens with as many classes. Both have 2 ranks of one thread. What is measured:
vs_pytorch.py.
"""
import argparse
import json
import os
import random
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path

import vs_pytorch as base

CLASSES, SAMPLES = 1000, 96
VOCABULARY = 30522
TEXT = """hidden_size = 256
num_layers = 4
num_heads = 4
vocab_size = 30522
"""
# The keys of [model]: the peer's sizes.
MODELS = {f"resnet{depth}": f'name = "resnet"\ndepth = {depth}' for depth in (18, 34, 50, 101, 152)}
MODELS["bert"] = f'name = "bert"\n{TEXT}intermediate_size = 1024'
MODELS["gpt2"] = f'name = "gpt2"\n{TEXT}dropout = 0.0\nattention_dropout = 0.0\nembedding_dropout = 0.0'
MODELS["llama"] = f'name = "llama"\n{TEXT}num_key_value_heads = 2\nintermediate_size = 682\nmax_positions = 1024'
CONFIG = """
[run]
dir = "{dir}"
device = "cpu"
keep_checkpoints = 0
[model]
{model}
[data]
name = "tensors"
path = "{data}"
[train]
epochs = 1000
max_steps = {steps}
global_batch = {global_batch}
eval_batch = {batch}
drop_last = true
[optimizer]
lr = 1e-4
"""


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", choices=MODELS, default="resnet18")
    p.add_argument("--image", type=int, default=160)
    p.add_argument("--seq", type=int, default=128, help="tokens a sample")
    p.add_argument("--batch", type=int, default=8, help="samples per rank and step")
    p.add_argument("--peer", default=os.environ.get("PEER", base.ROOT.parent / "shared/bench/model_ddp.py"), type=Path)
    p.add_argument("--python", default=sys.executable, help="interpreter of the peer")
    p.add_argument("--trireme", default=base.ROOT / "build/release/bin/trireme", type=Path)
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--out", type=Path)
    return p.parse_args()


def write_tensors(path, tensors):
    """A safetensors file; tensors: name -> (dtype, shape, bytes)."""
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def write_samples(path, a):
    """Random pixels and labels, of which the last class occurs; or random tokens."""
    rows = random.Random(1)
    integers = lambda values: struct.pack(f"<{len(values)}q", *values)
    if a.model.startswith("resnet"):
        size = SAMPLES * 3 * a.image * a.image
        pixels = b"".join(struct.pack("<f", rows.gauss(0, 1)) for _ in range(4096)) * (size // 4096 + 1)
        labels = [rows.randrange(CLASSES) for _ in range(SAMPLES - 1)] + [CLASSES - 1]
        return write_tensors(path, {"pixel_values": ("F32", [SAMPLES, 3, a.image, a.image], pixels[:size * 4]),
                                    "labels": ("I64", [SAMPLES], integers(labels))})
    tokens = ("I64", [SAMPLES, a.seq], integers([rows.randrange(3, VOCABULARY) for _ in range(SAMPLES * a.seq)]))
    labels = ("I64", [SAMPLES], integers([i % 2 for i in range(SAMPLES)])) if a.model == "bert" else tokens
    return write_tensors(path, {"input_ids": tokens, "labels": labels})


def trireme(a, folder):
    for split in ("train", "validation"):
        write_samples(Path(folder, f"{split}.safetensors"), a)
    config = Path(folder, "config.toml")
    config.write_text(CONFIG.format(dir=Path(folder, "run"), model=MODELS[a.model], data=folder, steps=a.steps,
                                    global_batch=a.batch * a.ranks, batch=a.batch))
    start = time.time()
    base.run([a.trireme, "train", config, "--ranks", a.ranks])
    ends = [x["time"] for x in base.lines_of(Path(folder, "run/metrics.jsonl").read_text()) if x["kind"] == "step"]
    # An epoch's end has an evaluation between two steps, so the median is taken of all.
    steps = [b - c for b, c in zip(ends[2:], ends[1:-1])]
    summary = json.loads(Path(folder, "run/summary.json").read_text())
    return {"step_s": round(statistics.median(steps), 4), "first_s": round(ends[0] - start, 3),
            "rss_mb": round(max(r["peak_rss_bytes"] for r in summary["ranks"]) / 2**20)}


def peer(a):
    out, _ = base.run([a.python, "-m", "torch.distributed.run", "--nproc-per-node", a.ranks, a.peer, "--model", a.model,
                       "--image", a.image, "--seq", a.seq, "--batch", a.batch, "--steps", a.steps], T0=str(time.time()))
    said = base.lines_of(out)[-1]
    return {"step_s": said["step_s"], "first_s": said["first_step_s"], "rss_mb": said["rss_mb"]}


def main():
    a = arguments()
    result = {"settings": {"model": a.model, "image": a.image, "seq": a.seq, "batch": a.batch, "ranks": a.ranks, "steps": a.steps},
              "machine": base.machine(a), "rounds": []}
    for _ in range(a.rounds):
        with tempfile.TemporaryDirectory() as folder:
            result["rounds"].append({"peer": peer(a), "trireme": trireme(a, folder)})
    result["ratios"] = {
        key: [round(r["trireme"][key] / r["peer"][key], 3) for r in result["rounds"]] for key in ("step_s", "first_s", "rss_mb")}
    result["median_ratios"] = {key: round(statistics.median(values), 3) for key, values in result["ratios"].items()}
    base.show(result, a.out)


if __name__ == "__main__":
    main()
