#!/usr/bin/env python3
"""Does the tuner find the fastest choices? Tunes each training several times, measures every combination of the choices
that keep its numbers, in rounds, and compares.

    bench/tuner.py TRIREME [--runs 10] [--rounds 3] [--seconds 4] [--ranks 2] [--json FILE]

For each training: how often the tuner's choice was within 3 % of the fastest combination, and what it cost. The trainings
are ResNet-18, ViT-tiny and BERT-mini on generated data, so that nothing is needed but the command.
"""
import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

LEAVES = {"data.name": "leaves", "data.images": 400, "data.image_size": 32, "train.global_batch": 16}
TRAININGS = {
    "ResNet-18": {**LEAVES, "model.name": "resnet", "model.depth": 18},
    "ViT-tiny": {**LEAVES, "model.name": "vit", "model.size": "tiny", "model.patch_size": 8, "model.dropout": 0.1},
    "BERT-mini": {"model.name": "bert", "model.size": "mini", "data.name": "text_classification", "data.tokenizer": "bytes",
                  "data.max_tokens": 32, "train.global_batch": 16},
}


def toml(value):
    return json.dumps(value)


def write_config(folder, name, keys):
    """The file of a training."""
    keys = {"run.device": "cpu", "run.dir": f"{folder}/run", **keys}
    if keys["data.name"] == "text_classification":
        table = folder / "texts"
        table.mkdir(exist_ok=True)
        words = "a small red leaf falls on wide water while seven grey birds sing of rain".split()
        for split, rows in (("train", 400), ("dev", 40)):
            lines = [f"{' '.join(words[(i * k + k) % len(words)] for k in range(1, 12))}\t{i % 2}" for i in range(rows)]
            (table / f"{split}.tsv").write_text("sentence\tlabel\n" + "\n".join(lines) + "\n")
        keys["data.path"] = str(table)
    sections = {}
    for key, value in keys.items():
        section, option = key.split(".")
        sections.setdefault(section, []).append(f"{option} = {toml(value)}\n")
    path = folder / f"{name}.toml"
    path.write_text("".join(f"[{section}]\n{''.join(rows)}\n" for section, rows in sections.items()))
    return path


def run(command, env):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=env)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return json.loads(done.stdout)


def combinations(tunings):
    """Every combination of choices that no tuning has rejected; () is the default."""
    switches = {}
    for candidate in (row for tuning in tunings for row in tuning["candidates"]):
        if candidate["step_s"] > 0 and candidate["numbers"] in ("same bits", "rounding") and not candidate["verdict"].startswith("rejected"):
            switches.setdefault(candidate["name"].split("=")[0], {None}).add(candidate["name"])
    ways = [sorted(ways, key=str) for _, ways in sorted(switches.items())]
    return [tuple(way for way in ways_of_one if way) for ways_of_one in itertools.product(*ways)]


def measure(args, config, ways, env):
    """The fastest of the rounds' median steps, of each combination: what else the machine does only adds time."""
    steps = {way: [] for way in ways}
    for _ in range(args.rounds):
        for way in ways:
            command = [args.trireme, "bench", config, "--ranks", args.ranks, "--seconds", args.seconds, "--json", "--set",
                       f"optimize.choices={toml(list(way))}"]
            found = run(command, env)
            steps[way].append(found[0]["step_s"]["median"])
    return {way: min(medians) for way, medians in steps.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trireme")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--json")
    args = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "XDG_CACHE_HOME": f"{folder}/cache"}
        for name, keys in TRAININGS.items():
            config = write_config(Path(folder), name, keys)
            tunings = [run([args.trireme, "tune", config, "--ranks", args.ranks, "--json"], env) for _ in range(args.runs)]
            times = measure(args, config, combinations(tunings), env)
            best = min(times.values())
            off = [times[tuple(sorted(tuning["chosen"]))] / best - 1 for tuning in tunings]
            results[name] = {"default_ms": 1e3 * times[()], "fastest_ms": 1e3 * best, "off": off,
                             "fastest": list(min(times, key=times.get)), "chosen": [t["chosen"] for t in tunings],
                             "tuning_s": statistics.median(t["seconds"] for t in tunings),
                             "ms": {" ".join(way) or "default": 1e3 * s for way, s in times.items()}}
            good = sum(o <= 0.03 for o in off)
            print(f"{name:10} default {1e3 * times[()]:6.1f} ms, fastest {1e3 * best:6.1f} ms "
                  f"({', '.join(results[name]['fastest']) or 'default'}); within 3 %: {good} of {len(off)}, "
                  f"worst {100 * max(off):.1f} %; tuning took {results[name]['tuning_s']:.1f} s", flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
