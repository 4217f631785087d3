#!/usr/bin/env python3
"""Trains BERT on SST-2 with Trireme and with transformers, from the same weights, and compares: JSON.

    bench/sst2_vs_transformers.py losses --sst2 DIR --vocab FILE [--steps 300] [--dtype fp32|fp64]
    bench/sst2_vs_transformers.py speed  --sst2 DIR --vocab FILE [--rounds 3] [--steps 60]

losses: BERT of 4 layers, 256 wide, without dropout; the weights are saved by transformers and loaded by Trireme (2 ranks
of one thread, each batch divided); the batches are the sentences of train.tsv in their order; AdamW without weight decay.
Printed is the largest relative difference of a step's loss.
speed: sentences a second of Trireme, without and with length buckets, beside the peer (--peer, or the variable PEER; by
default ../shared/bench/model_ddp.py): both have 2 ranks of one thread, 24 sentences each, dropout on.
"""
import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import vs_pytorch as base

CONFIG = """
[run]
dir = "{dir}"
device = "cpu"
keep_checkpoints = 0
[model]
name = "bert"
{model}
[data]
name = "text_classification"
train = "{sst2}/train.tsv"
validation = "{sst2}/dev.tsv"
tokenizer = "{vocab}"
max_tokens = 128
length_buckets = {buckets}
[train]
epochs = 1
max_steps = {steps}
global_batch = {batch}
shuffle = {shuffle}
precision = "{dtype}"
[optimizer]
lr = {lr}
weight_decay = 0.0
[schedule]
name = "constant"
"""
SIZES = "hidden_size = 256\nnum_layers = 4\nnum_heads = 4\nintermediate_size = 1024"
LR = 1e-4


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["losses", "speed"])
    p.add_argument("--sst2", type=Path, required=True, help="folder with GLUE's train.tsv and dev.tsv")
    p.add_argument("--vocab", type=Path, required=True, help="vocab.txt of BERT, uncased")
    p.add_argument("--steps", type=int)
    p.add_argument("--dtype", choices=["fp32", "fp64"], default="fp32")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--batch", type=int, default=24, help="sentences per rank and step")
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--peer", default=os.environ.get("PEER", base.ROOT.parent / "shared/bench/model_ddp.py"), type=Path)
    p.add_argument("--python", default=sys.executable, help="interpreter of the peer")
    p.add_argument("--trireme", default=base.ROOT / "build/release/bin/trireme", type=Path)
    p.add_argument("--out", type=Path)
    return p.parse_args()


def trireme(a, folder, **keys):
    """The lines of metrics.jsonl of a run."""
    config, run = Path(folder, "config.toml"), Path(folder, "run")
    config.write_text(CONFIG.format(dir=run, sst2=a.sst2.resolve(), vocab=a.vocab.resolve(), steps=a.steps, lr=LR,
                                    batch=a.batch * a.ranks, **keys))
    base.run([a.trireme, "train", config, "--ranks", a.ranks])
    return base.lines_of((run / "metrics.jsonl").read_text())


def transformers_losses(a, folder):
    """Saves the first weights to `folder` and trains: the loss of each step."""
    import torch
    import transformers
    torch.manual_seed(0)
    torch.set_num_threads(2)
    config = transformers.BertConfig(vocab_size=30522, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
                                     intermediate_size=1024, num_labels=2, hidden_dropout_prob=0.0,
                                     attention_probs_dropout_prob=0.0)
    model = transformers.BertForSequenceClassification(config)
    model = model.to(torch.float64 if a.dtype == "fp64" else torch.float32)
    model.save_pretrained(folder)
    tokenizer = transformers.BertTokenizerFast(str(a.vocab))
    lines = (a.sst2 / "train.tsv").read_text(encoding="utf-8").split("\n")[1:]
    rows = [line.split("\t") for line in lines if line]
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
    losses, size = [], a.batch * a.ranks
    for step in range(a.steps):
        part = rows[step * size:(step + 1) * size]
        made = tokenizer([r[0] for r in part], padding=True, truncation=True, max_length=128, return_tensors="pt")
        loss = model(**made, labels=torch.tensor([int(r[1]) for r in part])).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def compare_losses(a):
    a.steps = a.steps or (300 if a.dtype == "fp32" else 20)
    with tempfile.TemporaryDirectory() as folder:
        theirs = transformers_losses(a, Path(folder, "weights"))
        lines = trireme(a, folder, model=f'weights = "{folder}/weights"\ndropout = 0.0\nattention_dropout = 0.0',
                        buckets="false", shuffle="false", dtype=a.dtype)
    ours = [line["loss"] for line in lines if line["kind"] == "step"]
    apart = [abs(x - y) / abs(y) for x, y in zip(ours, theirs, strict=True)]
    return {"dtype": a.dtype, "steps": a.steps, "largest_relative_difference": max(apart), "mean": statistics.mean(apart),
            "first_losses": [ours[0], theirs[0]], "last_losses": [ours[-1], theirs[-1]]}


def sentences_per_second(a, folder, buckets):
    lines = trireme(a, folder, model=SIZES, buckets=buckets, shuffle="true", dtype=a.dtype)
    ends = [x["time"] for x in lines if x["kind"] == "step"]
    return round(a.batch * a.ranks * (len(ends) - 3) / (ends[-1] - ends[2]), 2)


def peer(a):
    out, _ = base.run([a.python, "-m", "torch.distributed.run", "--nproc-per-node", a.ranks, a.peer, "--model", "bert",
                       "--batch", a.batch, "--seq", 128, "--steps", a.steps, "--sst2", a.sst2.resolve(), "--vocab",
                       a.vocab.resolve()], T0=str(time.time()))
    return base.lines_of(out)[-1]["samples_per_s"]


def compare_speed(a):
    a.steps = a.steps or 60
    rounds = []
    for _ in range(a.rounds):
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
            rounds.append({"peer": peer(a), "trireme": sentences_per_second(a, one, "false"),
                           "trireme_buckets": sentences_per_second(a, two, "true")})
    return {"sentences_per_s": rounds,
            "median_ratios": {key: round(statistics.median(r[key] / r["peer"] for r in rounds), 3)
                              for key in ("trireme", "trireme_buckets")}}


def main():
    a = arguments()
    result = compare_losses(a) if a.what == "losses" else compare_speed(a)
    base.show({"machine": base.machine(a), **result}, a.out)


if __name__ == "__main__":
    main()
