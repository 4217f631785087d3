#!/usr/bin/env python3
"""Prints a Markdown table of runs: table.py LABEL=DEVICES=RUN... The first run is what the others are compared with.

An epoch's time is the mean over the epochs after the first one, which also starts threads and fills caches (over all if
there is only one). Memory is that of the rank that needs most: its tensors at their peak, and its whole process.
Accuracy is that of the last weights; top-k has the k of the task, 5 unless set.
"""
import json
import sys
from pathlib import Path


def evaluations(run):
    """The run's evaluations of whole epochs and of its last weights."""
    with open(run / "metrics.jsonl", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    evals = [line for line in lines if line["kind"] == "eval"]
    return [e for e in evals if "epoch_seconds" in e], [e for e in evals if e.get("weights") == "last"]


def read(run):
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    epochs, test = evaluations(run)
    warm = epochs[1:] or epochs
    final = summary["final"]

    def percent(key):
        return f"{100 * final[key]:.1f} %" if key in final else "-"

    ranks = summary["ranks"]
    return {"seconds": sum(e["epoch_seconds"] for e in warm) / len(warm),
            "tensors": max(r["peak_tensor_bytes"] for r in ranks) / 2**20,
            "process": max(r["peak_rss_bytes"] for r in ranks) / 2**20,
            "k": (epochs + test)[-1].get("k", "k"),
            "scores": [percent(f"{split}_{metric}")
                       for split in ("validation", "test") for metric in ("accuracy", "top_k")]}


def fail(text):
    print(text, file=sys.stderr)
    sys.exit(2)


def main():
    arguments = [argument.rsplit("=", 2) for argument in sys.argv[1:]]
    if not arguments or any(len(parts) != 3 for parts in arguments):
        fail(__doc__)
    try:
        runs = [(label, devices, read(Path(run))) for label, devices, run in arguments]
    except (OSError, KeyError, ValueError) as error:
        fail(f"table.py: no complete run: {error}")
    first, k = runs[0][2], runs[0][2]["k"]
    print("| way | devices | epoch | speed-up | memory per rank: tensors | process | "
          f"validation top-1 | top-{k} | test top-1 | top-{k} |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for label, devices, run in runs:
        cells = [label, devices, f"{run['seconds']:.2f} s", f"{first['seconds'] / run['seconds']:.2f}x",
                 f"{run['tensors']:.0f} MiB", f"{run['process']:.0f} MiB", *run["scores"]]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
