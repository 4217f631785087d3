#!/usr/bin/env python3
"""Measures how long a run takes to start on an image folder with many files, and how much memory a rank needs.

    bench/index_scale.py [--files 200000] [--classes 1000] [--ranks 2] [--out FILE]

Makes the folder: a PNG of 8 x 8 pixels per class, and hard links to it under names as ImageNet has them. Then trains one
step three times: on a part of it with two classes (the start without an index to speak of), on the whole folder with an
empty cache, and again with the index of the run before. Prints a table and JSON.

  first_s    from exec of the launcher to the end of the first step
  rss_mb     peak resident memory of a rank (the largest of them)
"""
import json
import os
import struct
import sys
import tempfile
import time
import zlib
from pathlib import Path

import vs_pytorch as base

CONFIG = """
[run]
dir = "{dir}"
keep_checkpoints = 0
[model]
name = "vit"
hidden_size = 16
num_layers = 1
num_heads = 1
intermediate_size = 16
patch_size = 8
[data]
name = "image_folder"
path = "{data}"
image_size = 8
[train]
max_steps = 1
global_batch = {batch}
[optimizer]
lr = 1e-3
"""


def arguments():
    p = base.measuring(__doc__)
    p.add_argument("--files", type=int, default=200000, help="training images; validation has one per class")
    p.add_argument("--classes", type=int, default=1000)
    return p.parse_args()


def png(side):
    """The bytes of a black PNG."""
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    rows = zlib.compress(bytes((1 + 3 * side) * side))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", rows) + chunk(b"IEND", b""))


def make_images(root, files, classes):
    image = png(8)
    for split, count in ("train", files), ("validation", classes):
        for c in range(classes):
            folder = root / split / f"n{c:08}"
            folder.mkdir(parents=True)
            first = folder / f"n{c:08}_0.JPEG"
            first.write_bytes(image)
            for i in range(1, count // classes):
                os.link(first, folder / f"n{c:08}_{i}.JPEG")
    hour_ago = time.time() - 3600  # folders that have just changed are not cached
    for folder, _, _ in os.walk(root):
        os.utime(folder, (hour_ago, hour_ago))


def measure(a, data, folder, name):
    config, run = folder / f"{name}.toml", folder / name
    config.write_text(CONFIG.format(dir=run, data=data, batch=a.ranks))
    start = time.time()
    base.run([a.trireme, "train", config, "--ranks", a.ranks], XDG_CACHE_HOME=str(folder / "cache"))
    step = next(line for line in base.lines_of((run / "metrics.jsonl").read_text()) if line["kind"] == "step")
    summary = json.loads((run / "summary.json").read_text())
    return {"first_s": step["time"] - start, "rss_mb": max(r["peak_rss_bytes"] for r in summary["ranks"]) / 2**20}


def main():
    a = arguments()
    with tempfile.TemporaryDirectory(dir=a.folder) as folder:
        folder = Path(folder)
        make_images(folder / "few", 2 * a.ranks, 2)
        make_images(folder / "images", a.files, a.classes)
        measure(a, folder / "few", folder, "unmeasured")  # programs and libraries are then in the page cache
        runs = {"few files": measure(a, folder / "few", folder, "few_files"),
                "listed": measure(a, folder / "images", folder, "listed"),
                "cached": measure(a, folder / "images", folder, "cached")}
        cached = [file.stat().st_size for file in (folder / "cache/trireme/index").glob("folder-*")]
    for name, run in runs.items():
        print(f"{name:12}{run['first_s']:9.2f} s{run['rss_mb']:9.1f} MiB", file=sys.stderr)
    base.show({"machine": base.machine(a), "files": a.files, "classes": a.classes, "ranks": a.ranks,
               "index_bytes": sum(cached), "runs": runs}, a.out)


if __name__ == "__main__":
    main()
