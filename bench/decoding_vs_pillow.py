#!/usr/bin/env python3
"""Images a second that one core reads and decodes to RGB: Trireme beside Pillow, on the same files, in turn, in each
format. The files are written by Pillow from those of a folder of images. Prints JSON.

    bench/decoding_vs_pillow.py --data FOLDER [--images 200] [--rounds 5] [--python PYTHON] [--out FILE]

Build the program first: cmake --build build/release --target bench_images.
"""
import json
import statistics
import tempfile

import images_vs_torchvision as images
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
from PIL import Image
files, seconds = sorted(glob.glob(sys.argv[1] + "/train/*")), float(sys.argv[2])
images, begin = 0, time.perf_counter()
while time.perf_counter() - begin < seconds:
    Image.open(files[images % len(files)]).convert("RGB")
    images += 1
spent = time.perf_counter() - begin
print(json.dumps({"images_per_s": round(images / spent, 1)}))
"""


def main():
    p = images.parser(__doc__, seconds=1.5)
    p.add_argument("--images", type=int, default=200)
    a = p.parse_args()
    pillow, _ = base.run([a.python, "-c", "import PIL; print(PIL.__version__)"])
    result = {"settings": {"images": a.images, "data": a.data.name}, "machine": base.machine(a),
              "pillow": pillow.strip(), "formats": {}}
    with tempfile.TemporaryDirectory() as folder:
        base.run([a.python, "-c", WRITER, a.data, folder, a.images, json.dumps(FORMATS)])
        for name in FORMATS:
            files = f"{folder}/{name}"
            rounds = images.in_turn([a.program, files, 0, a.seconds, "decode"],
                                    [a.python, "-c", PEER, files, a.seconds], a.rounds)
            ratios = [r["trireme"] / r["peer"] for r in rounds]
            result["formats"][name] = {
                "trireme": statistics.median(r["trireme"] for r in rounds),
                "pillow": statistics.median(r["peer"] for r in rounds),
                "ratio": round(statistics.median(ratios), 3), "ratios": [round(r, 3) for r in ratios]}
    base.show(result, a.out)


if __name__ == "__main__":
    main()
