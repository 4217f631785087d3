#!/usr/bin/env python3
"""Images a second that one core reads and decodes to RGB: Trireme beside Pillow, on the same files, in turn, in each
format. The files are written by Pillow from those of a folder of images. Prints JSON.

    bench/decoding_vs_pillow.py --data FOLDER [--images 200] [--rounds 5] [--python PYTHON] [--out FILE]

Build the program first: cmake --build build/release --target bench_images.
"""
import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

import vs_pytorch as base

FORMATS = {"jpeg": {"quality": 90}, "progressive.jpeg": {"quality": 90, "progressive": True}, "png": {},
           "webp": {"quality": 90}, "lossless.webp": {"lossless": True}, "gif": {}, "bmp": {},
           "lzw.tiff": {"compression": "tiff_lzw"}}

WRITER = """
import json, pathlib, sys
from PIL import Image
source, target, images, formats = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
files = sorted(pathlib.Path(source).glob("train/*/*"))[:images]
for name, options in formats.items():
    folder = target / name / "train"
    folder.mkdir(parents=True)
    for i, file in enumerate(files):
        Image.open(file).convert("RGB").save(folder / f"{i}.{name.split('.')[-1]}", **options)
"""

PEER = """
import glob, json, sys, time
from PIL import Image, __version__
files, seconds = sorted(glob.glob(sys.argv[1] + "/train/*")), float(sys.argv[2])
images, begin = 0, time.perf_counter()
while time.perf_counter() - begin < seconds:
    Image.open(files[images % len(files)]).convert("RGB")
    images += 1
spent = time.perf_counter() - begin
print(json.dumps({"images_per_s": round(images / spent, 1), "pillow": __version__}))
"""


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", required=True, type=Path)
    p.add_argument("--images", type=int, default=200)
    p.add_argument("--seconds", type=float, default=1.5)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--python", default=sys.executable, help="interpreter of the peer")
    p.add_argument("--program", type=Path, default=base.ROOT / "build/release/bench/bench_images")
    p.add_argument("--trireme", default=base.ROOT / "build/release/bin/trireme", type=Path)
    p.add_argument("--out", type=Path)
    a = p.parse_args()
    result = {"settings": {"images": a.images, "data": a.data.name}, "machine": base.machine(a), "formats": {}}
    with tempfile.TemporaryDirectory() as folder:
        base.run([a.python, "-c", WRITER, a.data, folder, a.images, json.dumps(FORMATS)])
        for name in FORMATS:
            rounds = []
            for _ in range(a.rounds):
                ours, _ = base.run([a.program, f"{folder}/{name}", 0, a.seconds, "decode"])
                peer, _ = base.run([a.python, "-c", PEER, f"{folder}/{name}", a.seconds])
                rounds.append([base.lines_of(ours)[-1]["images_per_s"], base.lines_of(peer)[-1]["images_per_s"]])
            result["pillow"] = base.lines_of(peer)[-1]["pillow"]
            ratios = [ours / theirs for ours, theirs in rounds]
            result["formats"][name] = {
                "trireme": statistics.median(r[0] for r in rounds), "pillow": statistics.median(r[1] for r in rounds),
                "ratio": round(statistics.median(ratios), 3), "ratios": [round(r, 3) for r in ratios]}
    base.show(result, a.out)


if __name__ == "__main__":
    main()
