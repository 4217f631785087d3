#!/usr/bin/env python3
"""How right forecasts are: trains six models in many layouts and compares each run with its plan.

    bench/plan_grid.py TRIREME [--machine FILE] [--only TEXT] [--json OUT]

TRIREME is the command. With --machine, of one rank a core, the seconds of a step are compared, too. --only runs the
cases whose name contains the text. Prints a line a run, then the errors by model and of all: median, 95th percentile,
largest. Exit code 1: a run failed, or sent other bytes than planned. Python's standard library alone.
"""
import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

TEXT = "hidden_size = 128\nnum_layers = 4\nnum_heads = 4\n"
LEAVES = '[data]\nname = "leaves"\nimages = 300\nimage_size = 48\n'
WORDS = '[data]\nname = "text"\ntokenizer = "bytes"\nblock = 64\npath = "{folder}/texts"\n'
VIT = 'name = "vit"\npatch_size = 8\nhidden_size = 96\nnum_layers = 4\nnum_heads = 4\nintermediate_size = 384\n'
MODELS = {
    "vit": (VIT, LEAVES),
    "vit with dropout": (VIT + "dropout = 0.1\n", LEAVES),
    "gpt2": ('name = "gpt2"\nmax_positions = 64\n' + TEXT, WORDS),
    "llama": ('name = "llama"\nmax_positions = 64\nintermediate_size = 256\n' + TEXT, WORDS),
    "bert": ('name = "bert"\nmax_positions = 64\nintermediate_size = 512\n' + TEXT, WORDS),
    "resnet": ('name = "resnet"\ndepth = 18\nwidth = 16\n', LEAVES),
}
DDP = 'plugin = "torch_ddp"\n'
MICRO = "micro_batch = 4\n"
OFFLOAD = "[plugin.hybrid_parallel]\ncpu_offload = true\n"
# name: ranks, [parallel], [train]
LAYOUTS = {
    "1 rank": (1, DDP, ""),
    "1 rank, microbatches": (1, DDP, MICRO),
    "1 rank, recompute": (1, DDP, "recompute = true\n"),
    "1 rank, bf16": (1, DDP, 'precision = "bf16"\n'),
    "1 rank, fp64": (1, DDP, 'precision = "fp64"\n'),
    "1 rank, average": (1, DDP, "ema_decay = 0.9\n"),
    "dp 2": (2, DDP, ""),
    "dp 2, clipped": (2, DDP, "max_norm = 1.0\n"),
    "dp 2, zero 1": (2, "zero = 1\n", ""),
    "dp 2, zero 2": (2, "zero = 2\n", MICRO),
    "dp 2, zero 3": (2, "zero = 3\n", ""),
    "dp 2, zero 2, offload": (2, "zero = 2\n" + OFFLOAD, ""),
    "dp 2, zero 2, bf16": (2, "zero = 2\n", 'precision = "bf16"\n'),
    "dp 2, low_level_zero": (2, 'plugin = "low_level_zero"\n', "recompute = true\n"),
    "dp 2, gemini": (2, 'plugin = "gemini"\n', ""),
    "tp 2": (2, "tp = 2\n", ""),
    "pp 2": (2, "pp = 2\n", MICRO),
    "pp 2, gpipe": (2, 'pp = 2\nschedule = "gpipe"\n', MICRO),
    "pp 2, zbv": (2, 'pp = 2\nschedule = "zbv"\n', MICRO),
    "sp 2, all_to_all": (2, 'sp = 2\nsp_mode = "all_to_all"\n', ""),
    "dp 4": (4, DDP, ""),
    "tp 2, pp 2": (4, "tp = 2\npp = 2\n", MICRO),
    "dp 2, tp 2, zero 1": (4, "tp = 2\nzero = 1\n", ""),
    "pp 4": (4, "pp = 4\n", MICRO),
}
NOT_OF_RESNET = ("tp", "sp")


def quantile(values, at):
    values = sorted(values)
    return values[max(0, math.ceil(at * len(values)) - 1)] if values else float("nan")


def run(command, folder, name, model, layout, machine):
    ranks, parallel, train = layout
    keys, data = model
    place = folder / f"run{len(list(folder.glob('run*')))}"
    config = folder / "run.toml"
    machine_key = f'machine = "{machine}"\nthreads = 1\n' if machine else ""
    config.write_text(f'[run]\ndir = "{place}"\ndevice = "cpu"\n{machine_key}[model]\n{keys}{data.format(folder=folder)}'
                      f"[train]\nepochs = {20 if machine else 1}\nmax_steps = {100 if machine else 4}\nglobal_batch = 16\n"
                      f"{train}[parallel]\n{parallel}")
    done = subprocess.run([command, "train", config, "--ranks", str(ranks)], capture_output=True, text=True)
    if done.returncode != 0:
        print(f"{name}: {done.stderr.strip()[-300:]}")
        return None
    checked = subprocess.run([command, "plan", "--check", place, "--json"], capture_output=True, text=True, check=True)
    return json.loads(checked.stdout)[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command")
    parser.add_argument("--machine")
    parser.add_argument("--only", default="")
    parser.add_argument("--json")
    given = parser.parse_args()
    machine = Path(given.machine).resolve() if given.machine else None
    found, failed = [], False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "texts").mkdir()
        (folder / "texts/a.txt").write_text("what a step costs is known before it runs\n" * 2000)
        for model_name, model in MODELS.items():
            for layout_name, layout in LAYOUTS.items():
                case = f"{model_name}: {layout_name}"
                if given.only not in case or (model_name == "resnet" and any(a in layout[1] for a in NOT_OF_RESNET)):
                    continue
                row = run(given.command, folder, case, model, layout, machine)
                failed = failed or row is None or row["peak_bytes"]["error"] is None
                if row is None or row["peak_bytes"]["error"] is None:
                    print(f"{case:45} no forecast" if row else f"{case:45} no run", flush=True)
                    continue
                row.update(model=model_name, layout=layout_name, ranks=layout[0])
                found.append(row)
                peak, sent, step = (row[key]["error"] for key in ("peak_bytes", "sent_bytes", "step_seconds"))
                failed = failed or sent != 0
                print(f"{case:45} peak {100 * peak:+6.2f} %  bytes {'exact' if sent == 0 else 'WRONG'}"
                      + (f"  step {100 * step:+6.1f} %" if step is not None else ""), flush=True)
    for model_name in [*MODELS, ""]:
        rows = [row for row in found if model_name in ("", row["model"])]
        line = f"{model_name or 'all':18} {len(rows):4} runs"
        for key, ranks in (("peak_bytes", 4), ("step_seconds", 2)):
            errors = [100 * abs(row[key]["error"]) for row in rows
                      if row["ranks"] <= ranks and row[key]["error"] is not None]
            if errors:
                line += f"  {key}: median {quantile(errors, 0.5):.2f} %, 95th percentile {quantile(errors, 0.95):.2f} %, " \
                        f"largest {max(errors):.2f} %"
        print(line)
    if given.json:
        Path(given.json).write_text(json.dumps(found, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
