#!/usr/bin/env python3
"""Trains one model in many layouts on real data and reports how far the loss curves and accuracies differ.

    bench/layouts_on_data.py CONFIG --data BEANS [--layouts "tp=2,pp=2; dp=2,tp=2,zero=1; ..."] [--set KEY=VALUE ...]

Each layout is written as in `trireme verify`; other words are keys, such as train.precision=bf16. The first run is one rank with the whole batch at once. The second is one
rank with microbatches: it shows how much splitting the batch alone changes fp32's last digits. Prints a table and JSON.
"""
import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import vs_pytorch as base

LAYOUTS = "tp=2,pp=2; dp=2,tp=2,zero=1; dp=2,pp=2,zero=2; pp=4,schedule=zb_h1; tp=2,sp_mode=split_gather,pp=2; dp=4,zero=2"


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("config", type=Path)
    p.add_argument("--data", required=True, type=Path)
    p.add_argument("--layouts", default=LAYOUTS)
    p.add_argument("--micro", type=int, default=8, help="microbatch of all but the first run")
    p.add_argument("--set", action="append", default=[])
    p.add_argument("--trireme", default=base.ROOT / "build/release/bin/trireme", type=Path)
    p.add_argument("--python", default="python3", help="interpreter whose versions are recorded")
    p.add_argument("--out", type=Path)
    return p.parse_args()


def sets(layout):
    """Returns the number of ranks that a layout needs, and its keys as --set options."""
    ranks, out = 1, []
    for word in filter(None, (w.strip() for w in layout.split(","))):
        key, value = word.split("=")
        if key in ("dp", "pp", "sp", "tp"):
            ranks *= int(value)
        out += ["--set", f"{key}={value}" if "." in key else f"parallel.{key}={value}"]
    return ranks, out


def run(a, name, layout, micro, folder):
    ranks, words = sets(layout)
    more = [f"run.dir={folder}/{name}", f"data.path={a.data.resolve()}", "run.keep_checkpoints=0", *a.set]
    if micro:
        more.append(f"train.micro_batch={micro}")
    plain = Path(folder, "plain.toml")  # the file without its own layout
    text = a.config.read_text()
    text = text[:text.index("[parallel]")] if "[parallel]" in text else text
    plain.write_text("".join(l + "\n" for l in text.splitlines() if not l.startswith("micro_batch")))
    command = [a.trireme, "train", plain, "--ranks", ranks, "--set", "parallel.plugin=hybrid_parallel", *words]
    for item in more:
        command += ["--set", item]
    start = time.time()
    base.run(command)
    lines = base.lines_of(Path(folder, name, "metrics.jsonl").read_text())
    summary = json.loads(Path(folder, name, "summary.json").read_text())
    return {"ranks": ranks, "seconds": time.time() - start, "loss": [l["loss"] for l in lines if l["kind"] == "step"],
            "validation": [l["accuracy"] for l in lines if l["kind"] == "eval" and l["split"] == "validation"],
            "test": [l["accuracy"] for l in lines if l["kind"] == "eval" and l["split"] == "test"],
            "peak_mb": max(r["peak_rss_bytes"] for r in summary["ranks"]) / 2**20}


def apart(a, b):
    return max(abs(x - y) / abs(x) for x, y in zip(a["loss"], b["loss"]))


def main():
    a = arguments()
    runs = [("one rank", "", 0), ("one rank, split", "", a.micro)]
    runs += [(layout.strip(), layout.strip(), a.micro) for layout in a.layouts.split(";")]
    done = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, layout, micro) in enumerate(runs):
            done[name] = run(a, f"run{number}", layout, micro, folder)
            first = done["one rank"]
            done[name]["apart"] = apart(first, done[name])
            print(f"{name:34} {done[name]['ranks']} ranks {len(done[name]['loss'])} steps  "
                  f"loss differs by {done[name]['apart']:.1e}  "
                  f"validation {done[name]['validation'][-1]:.4f}"
                  + "".join(f"  test {value:.4f}" for value in done[name]["test"][-1:]) + f"  {done[name]['seconds']:.0f} s",
                  file=sys.stderr, flush=True)
    text = json.dumps({"machine": base.machine(a), "config": a.config.name, "set": a.set, "runs": done}, indent=1)
    print(text)
    if a.out:
        a.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
