#!/usr/bin/env python3
"""How good the layout is that a search finds: measures it in turn with the next best and with others.

    bench/plan_search.py TRIREME --machine FILE [--ranks N] [--seconds S] [--only TEXT] [--json OUT]

TRIREME is the command, FILE the rates that its `bench --machine` wrote for so many ranks. For each of ten trainings, the
layout that `plan --search` puts first is measured by `bench` in turn with the three after it and with plain layouts, S
seconds each. Prints how much longer its step takes than the fastest one's. Exit code 1: more than one of
ten takes over 5 % longer. Python's standard library alone.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from plan_grid import LEAVES, MODELS, TEXT, VIT, WORDS

PLAIN = ["dp={n}", "dp={n},zero=1", "dp={n},zero=3", "dp=1,tp={n}", "dp=1,pp={n}", "dp=1,pp={n},schedule=zbv",
         "dp=1,sp={n},sp_mode=all_to_all"]
# name: [model], [data], [train]
TRAININGS = {name: (*model, "global_batch = 16\n") for name, model in MODELS.items()} | {
    "vit, wide": (VIT.replace("96", "256").replace("384", "1024"), LEAVES, "global_batch = 8\n"),
    "vit, deep": (VIT.replace("96", "32").replace("384", "64").replace("num_layers = 4", "num_layers = 12"), LEAVES,
                  "global_batch = 16\n"),
    "gpt2, long": ('name = "gpt2"\nmax_positions = 256\n' + TEXT, WORDS.replace("block = 64", "block = 256"),
                   "global_batch = 8\n"),
    "llama, bf16": ('name = "llama"\nmax_positions = 64\nintermediate_size = 512\n' + TEXT.replace("128", "256"), WORDS,
                    'global_batch = 16\nprecision = "bf16"\n'),
}


def output(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command")
    parser.add_argument("--machine", required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--only", default="")
    parser.add_argument("--json")
    given = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "texts").mkdir()
        (folder / "texts/a.txt").write_text("what a step costs is known before it runs\n" * 2000)
        for training, (model, data, train) in TRAININGS.items():
            if given.only not in training:
                continue
            config = folder / "run.toml"
            config.write_text(f'[run]\ndir = "{folder}/run"\ndevice = "cpu"\nthreads = 1\n[model]\n{model}'
                              f"{data.format(folder=folder)}[train]\nepochs = 20\n{train}")
            searched = output([given.command, "plan", config, "--search", "--ranks", str(given.ranks), "--machine",
                               given.machine, "--json", "--seconds", "60"])
            names = [row["name"] for row in searched["fitting"]]
            plain = output([given.command, "plan", config, "--layouts", "; ".join(PLAIN).format(n=given.ranks), "--json"])
            layouts = list(dict.fromkeys(names[:4] + [row["name"] for row in plain if "problem" not in row]))
            rows = output([given.command, "bench", config, "--layouts", "; ".join(layouts), "--seconds",
                           str(given.seconds), "--json"])
            seconds = {row["name"]: row["step_s"]["median"] for row in rows}
            best = min(seconds, key=seconds.get)
            row = {"training": training, "chosen": names[0], "best": best, "over": seconds[names[0]] / seconds[best] - 1,
                   "seconds": seconds}
            found.append(row)
            print(f"{training:18} {1e3 * seconds[names[0]]:7.1f} ms  {100 * row['over']:+5.1f} %  {names[0]}"
                  + (f"  (best: {best}, {1e3 * seconds[best]:.1f} ms)" if best != names[0] else ""), flush=True)
    if given.json:
        Path(given.json).write_text(json.dumps(found, indent=1))
    worse = sum(row["over"] > 0.05 for row in found)
    print(f"{len(found) - worse} of {len(found)} take at most 5 % longer than the fastest that was measured")
    return 1 if 10 * worse > len(found) else 0


if __name__ == "__main__":
    sys.exit(main())
