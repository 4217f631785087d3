#!/usr/bin/env python3
"""Images a second that one core decodes and augments: Trireme's image_folder beside torchvision's v2 transforms, on the
same files, in turn. Prints JSON.

    bench/images_vs_torchvision.py --data FOLDER [--size 224] [--rounds 5] [--python PYTHON] [--out FILE]

Both read each file, decode it, cut a random part out, resize it with antialiasing, flip, and normalise to float32. The
peer uses torchvision.io.decode_image and v2 (RandomResizedCrop, RandomHorizontalFlip, ToDtype, Normalize) on tensors.
Build the program first: cmake --build build/release --target bench_images.
"""
import argparse
import statistics
import sys
from pathlib import Path

import vs_pytorch as base

PEER = """
import glob, json, sys, time
import torch
from torchvision.io import ImageReadMode, decode_image, read_file
from torchvision.transforms import v2
torch.set_num_threads(1)
folder, size, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
files = sorted(glob.glob(folder + "/train/*/*"))
prepare = v2.Compose([v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip(),
                      v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.5] * 3)])
images, begin = 0, time.perf_counter()
while time.perf_counter() - begin < seconds:
    prepare(decode_image(read_file(files[images % len(files)]), mode=ImageReadMode.RGB))
    images += 1
spent = time.perf_counter() - begin
print(json.dumps({"images": images, "seconds": round(spent, 3), "images_per_s": round(images / spent, 1)}))
"""


def parser(description, seconds):
    """With the options of all comparisons of images."""
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", required=True, type=Path)
    p.add_argument("--seconds", type=float, default=seconds)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--python", default=sys.executable, help="interpreter of the peer")
    p.add_argument("--program", type=Path, default=base.ROOT / "build/release/bench/bench_images")
    p.add_argument("--trireme", default=base.ROOT / "build/release/bin/trireme", type=Path)
    p.add_argument("--out", type=Path)
    return p


def in_turn(ours, peer, rounds):
    """Images a second by the two commands, in each round."""
    return [{name: base.lines_of(base.run(command)[0])[-1]["images_per_s"]
             for name, command in (("trireme", ours), ("peer", peer))} for _ in range(rounds)]


def main():
    p = parser(__doc__, seconds=5)
    p.add_argument("--size", type=int, default=224)
    a = p.parse_args()
    result = {"settings": {"size": a.size, "data": a.data.name}, "machine": base.machine(a)}
    result["rounds"] = in_turn([a.program, a.data, a.size, a.seconds],
                               [a.python, "-c", PEER, a.data, a.size, a.seconds], a.rounds)
    result["ratios"] = [round(r["trireme"] / r["peer"], 3) for r in result["rounds"]]
    result["median_ratio"] = statistics.median(result["ratios"])
    base.show(result, a.out)


if __name__ == "__main__":
    main()
