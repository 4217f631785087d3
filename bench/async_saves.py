#!/usr/bin/env python3
"""Measures how long a training waits for its checkpoints: saved at once, and in the background (run.async_save).

    bench/async_saves.py [--size base] [--ranks 2] [--every 4] [--saves 3] [--rounds 2] [--out FILE]

Trains a ViT on drawn images, in turn without checkpoints, with checkpoints that are saved at once, and with such that
are saved in the background. Every --every steps one is written; the one at the run's end, which is always waited for,
does not count. Prints a table and JSON; all times are medians.

  held_s     for which the training waited for a save
  write_s    from the first byte to the published folder, without waits for other ranks' steps
  step_s     of the steps before the first save, and of those while a save is written
  rss_mb     peak resident memory of a rank (the largest of them)
"""
import json
import statistics
import sys
import tempfile
from pathlib import Path

import vs_pytorch as base

CONFIG = """
[run]
dir = "{dir}"
device = "cpu"
keep_checkpoints = {keep}
checkpoint_every = {every}
async_save = {background}
[model]
name = "vit"
size = "{size}"
[data]
name = "leaves"
images = {images}
image_size = 224
[train]
max_steps = {steps}
epochs = 1000
global_batch = {global_batch}
micro_batch = {batch}
drop_last = true
[optimizer]
lr = 2e-4
"""
MODES = {"none": (0, "false"), "at once": (1, "false"), "background": (1, "true")}


def arguments():
    p = base.measuring(__doc__)
    p.add_argument("--size", default="base")
    p.add_argument("--batch", type=int, default=2, help="samples of a rank per step")
    p.add_argument("--every", type=int, default=4, help="steps between saves")
    p.add_argument("--saves", type=int, default=3, help="that count, in a round")
    p.add_argument("--rounds", type=int, default=2)
    return p.parse_args()


def measure(a, folder, mode):
    keep, background = MODES[mode]
    steps = a.every * (a.saves + 1)
    config, run = folder / "config.toml", folder / "run"
    samples = a.batch * a.ranks
    config.write_text(CONFIG.format(dir=run, keep=keep, every=a.every if keep else 0, background=background,
                                    size=a.size, images=20 * samples, steps=steps, global_batch=samples,
                                    batch=a.batch))
    out, _ = base.run([a.trireme, "train", config, "--ranks", a.ranks, "--fresh"])
    lines = base.lines_of((run / "metrics.jsonl").read_text())
    saves = [line for line in lines if line.get("event") == "save" and line["step"] < steps]
    seconds = {line["step"]: samples / line["samples_per_s"] for line in lines if line["kind"] == "step"}
    # A save that begins after step N is written during the steps after it, until its line comes.
    during, before = [], [seconds[step] for step in range(3, a.every + 1)]
    for save in saves:
        done = lines.index(save)
        during += [seconds[line["step"]] for line in lines[:done]
                   if line["kind"] == "step" and line["step"] > save["step"]]
    header = next((line.strip() for line in out.splitlines() if line.startswith("saves")), None)
    summary = json.loads((run / "summary.json").read_text())
    return {"held_s": [save["held_s"] for save in saves], "write_s": [save["write_s"] for save in saves],
            "bytes": saves[0]["bytes"] if saves else 0, "step_before_s": before, "step_during_s": during,
            "rss_mb": max(rank["peak_rss_bytes"] for rank in summary["ranks"]) / 2**20,
            "seconds": summary["seconds"], "header": header}


def main():
    a = arguments()
    runs = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory(dir=a.folder) as folder:
        for _ in range(a.rounds):
            for mode in MODES:
                runs[mode].append(measure(a, Path(folder), mode))

    def median(mode, key):
        values = [v for run in runs[mode] for v in (run[key] if isinstance(run[key], list) else [run[key]])]
        return statistics.median(values) if values else None
    keys = ["held_s", "write_s", "step_before_s", "step_during_s", "seconds", "rss_mb"]
    medians = {mode: {key: median(mode, key) for key in keys} for mode in MODES}
    ratio = medians["background"]["held_s"] / medians["at once"]["held_s"]
    for mode, values in medians.items():
        print(f"{mode:12}" + "  ".join(f"{k} {v:.3f}" if v is not None else f"{k} -" for k, v in values.items()),
              file=sys.stderr)
    print(f"held up, background to at once: {ratio:.3f}", file=sys.stderr)
    settings = {key: getattr(a, key) for key in ("size", "ranks", "batch", "every", "saves", "rounds")}
    base.show({"machine": base.machine(a), "settings": settings, "held_ratio": ratio, "medians": medians, "runs": runs},
              a.out)


if __name__ == "__main__":
    main()
