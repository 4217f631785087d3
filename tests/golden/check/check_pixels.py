"""Compares our pixel_values with those of transformers' ViTImageProcessor, by both of its backends, on real photos.

    cmake --build --preset release --target pixel_dump
    python tests/golden/check/check_pixels.py build/release/tests/unit/datasets/pixel_dump FOLDER... [--images 20] [--size 224]

Takes --images files of each folder, evenly spread. Fails unless all values are within 2 grey levels of 255 and 99 % of
them within 1.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from PIL import Image
from transformers import ViTImageProcessor
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil


def ours(program, files, size):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "pixels"
        subprocess.run([program, str(size), out, *files], check=True)
        return np.fromfile(out, np.float32).reshape(len(files), 3, size, size)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--size", type=int, default=224)
    args = parser.parse_args()
    good = True
    for folder in args.folders:
        found = sorted(p for p in pathlib.Path(folder).rglob("*") if p.suffix.lower() in (".jpg", ".jpeg", ".png"))
        files = [found[i] for i in np.unique(np.linspace(0, len(found) - 1, args.images).astype(int))]
        got = ours(args.program, files, args.size)
        for kind, make in (("Pillow", ViTImageProcessorPil), ("torchvision", ViTImageProcessor)):
            processor = make(size={"height": args.size, "width": args.size})
            images = [Image.open(f).convert("RGB") for f in files]
            want = np.asarray(processor(images, return_tensors="np")["pixel_values"])
            off = np.abs(got - want) * 127.5  # (x / 255 - 0.5) / 0.5: a grey level is 1 / 127.5
            within = (off < 1.001).mean() * 100
            print(f"{folder}: {len(files)} images, {kind}: largest difference {off.max():.3f} grey levels, "
                  f"{within:.3f} % within 1, {(off < 0.001).mean() * 100:.2f} % equal")
            good = good and off.max() < 2.001 and within >= 99
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
