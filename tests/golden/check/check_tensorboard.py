"""Reads a run's folder for TensorBoard, or one of its files, with TensorBoard's own reader, and prints its scalars as
JSON: {tag: [[step, value], ...]}. With --metrics, it also checks that they are the numbers of the run's metrics.jsonl.

Run:  python tests/golden/check/check_tensorboard.py runs/leaves_vit/tensorboard [--metrics runs/leaves_vit/metrics.jsonl]
Needs tensorboard. Exit status 0: the file is read, and its numbers are equal; 1: not, and what differs is printed.
"""
import argparse
import json
import math
import sys

from tensorboard.backend.event_processing import event_accumulator

KEYS = ("loss", "lr", "grad_norm", "samples_per_s", "data_wait", "flops_per_s", "mfu")


def expected(lines):
    """The scalars of metrics.jsonl: {tag: {step: value}}."""
    scalars = {}
    for line in lines:
        if line["kind"] == "step":
            found = {f"train/{key}": line[key] for key in KEYS if key in line}
        elif line["kind"] == "eval":
            split = line["split"] + ("_best" if line.get("weights") == "best" else "")
            found = {f"{split}/{key}": line[key] for key in ("loss", "accuracy", "top_k") if key in line}
            if "train_loss" in line:
                found["train/epoch_loss"] = line["train_loss"]
        else:
            continue
        for tag, value in found.items():
            scalars.setdefault(tag, {})[line["step"]] = value
    return scalars


def differences(read, lines):
    for tag, values in expected(lines).items():
        steps = dict(read.get(tag, []))
        for step, value in values.items():
            got = steps.get(step)
            same = got is not None and (math.isclose(got, value, rel_tol=1e-6, abs_tol=1e-30)
                                        or not math.isfinite(got) and not math.isfinite(value))
            if not same:
                yield f"{tag}, step {step}: {got} instead of {value}"
        if tag.startswith("train/") and len(steps) != len(read[tag]):
            yield f"{tag}: a step appears twice"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    parser.add_argument("--metrics")
    args = parser.parse_args()
    reader = event_accumulator.EventAccumulator(args.path, size_guidance={event_accumulator.SCALARS: 0})
    reader.Reload()
    read = {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}
    print(json.dumps(read, indent=1))
    problems = [] if read else [f"{args.path}: no scalars"]
    if args.metrics:
        with open(args.metrics, encoding="utf-8") as file:
            problems += differences(read, [json.loads(line) for line in file])
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
