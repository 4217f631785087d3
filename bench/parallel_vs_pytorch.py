#!/usr/bin/env python3
"""Compares Trireme's layouts with PyTorch's parallel modes, in turn on one machine: step time and peak memory.

    bench/parallel_vs_pytorch.py --data BEANS [--rounds 3] [--only NAME,...]

The model is ViT-small at 224 px; the global batch is 8, on 2 ranks of one thread. Trireme reads BEANS, an image folder
(docs/data.md). The peer program (--peer, by default ../shared/bench/vit_parallel.py beside the project) makes random
pixels once and reads no files.
"""
import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

import vs_pytorch as base

OURS = {"ddp": ("torch_ddp", ""), "stage1": ("low_level_zero", "stage = 1"), "stage2": ("low_level_zero", "stage = 2"),
        "gemini": ("gemini", "max_prefetch = 1"), "tp": ("hybrid_parallel", "tp_size = {ranks}"),
        "1f1b": ("hybrid_parallel", "pp_size = {ranks}"),
        "interleaved": ("hybrid_parallel", 'pp_size = {ranks}\npp_style = "interleaved"\nnum_model_chunks = 2'),
        "zb_h1": ("hybrid_parallel", 'pp_size = {ranks}\npp_style = "zb_h1"'),
        "zbv": ("hybrid_parallel", 'pp_size = {ranks}\npp_style = "zbv"')}
PIPELINES = {"1f1b", "interleaved", "zb_h1", "zbv"}  # these use microbatches of 2, as the peer does
PEERS = {"torch-ddp": "ddp", "torch-zero1": "zero1", "torch-fsdp": "fsdp", "torch-tp": "tp", "torch-1f1b": "pp",
         "torch-interleaved": "interleaved"}


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", required=True, type=Path)
    p.add_argument("--peer", default=base.ROOT.parent / "shared/bench/vit_parallel.py", type=Path)
    p.add_argument("--python", default=Path(os.environ.get("TRIREME_VENV", Path.home() / ".cache/trireme/venv")) / "bin/python")
    p.add_argument("--trireme", default=base.ROOT / "build/release/bin/trireme", type=Path)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--size", default="small")
    p.add_argument("--batch", type=int, default=8, help="global batch")
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--device", default="cpu")
    p.add_argument("--only", help="names to run, separated by commas")
    p.add_argument("--out", type=Path)
    return p.parse_args()


def ours(a, name):
    plugin, keys = OURS[name]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.toml")
        text = base.SPEED.format(dir=Path(folder, "run"), data=a.data.resolve(), size=a.size, steps=a.steps,
                                 batch=2 if name in PIPELINES else a.batch if name == "tp" else a.batch // a.ranks,
                                 global_batch=a.batch, device=a.device)
        config.write_text(f'{text}[parallel]\nplugin = "{plugin}"\n[plugin.{plugin}]\n{keys.format(ranks=a.ranks)}\n')
        base.run([a.trireme, "train", config, "--ranks", a.ranks])
        steps = [line["time"] for line in base.lines_of(Path(folder, "run/metrics.jsonl").read_text()) if line["kind"] == "step"]
        ranks = json.loads(Path(folder, "run/summary.json").read_text())["ranks"]
    return {"step_s": statistics.median(b - e for e, b in zip(steps[1:], steps[2:])),
            "rss_mb": max(rank["peak_rss_bytes"] for rank in ranks) / 2**20}


def peer(a, name):
    command = [a.python, "-m", "torch.distributed.run", "--nproc-per-node", a.ranks, a.peer, "--mode", PEERS[name],
               "--size", a.size, "--batch", a.batch, "--steps", a.steps]
    try:
        out, _ = base.run(command)
    except SystemExit:  # Gloo sometimes aborts during teardown
        out, _ = base.run(command)
    line = base.lines_of(out)[-1]
    return {"step_s": line["step_s"], "rss_mb": line["rss_mb"]}


def main():
    a = arguments()
    names = a.only.split(",") if a.only else [*OURS, *PEERS]
    rounds = {name: [] for name in names}
    for number in range(a.rounds):
        for name in names if number % 2 == 0 else reversed(names):
            rounds[name].append(ours(a, name) if name in OURS else peer(a, name))
            print(f"round {number + 1} {name:12}", rounds[name][-1], file=sys.stderr, flush=True)
    a.seed = None
    median = {name: {k: statistics.median(r[k] for r in rounds[name]) for k in rounds[name][0]} for name in names}
    print(f"{'':14}{'step, s':>10}{'peak, MB':>10}")
    for name in names:
        print(f"{name:14}{median[name]['step_s']:10.3f}{median[name]['rss_mb']:10.0f}")
    text = json.dumps({"machine": base.machine(a), "arguments": {k: str(getattr(a, k)) for k in ("ranks", "size", "batch", "steps", "rounds", "device")},
                       "median": median, "rounds": rounds}, indent=2)
    print(text)
    if a.out:
        a.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
