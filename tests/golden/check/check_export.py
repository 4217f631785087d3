"""Checks that a model folder written by trireme (a run's model/) is Hugging Face's: transformers loads it with no
missing, unexpected or misshapen key, and gives the same logits on random images in float64, within 1e-10 of their norm;
and that its image-classification pipeline loads it, prepares images as preprocessor_config.json says, and with --data
classifies a folder of images (CLASS/*) as well as `trireme eval` says: the accuracy is printed.

Run:  cmake --build --preset release --target model_logits
      python tests/golden/check/check_export.py runs/leaves_vit/model [--tool PATH] [--images 8] [--data data/leaves/test]
Needs torch, transformers 5, Pillow and safetensors. Exit status 0: all equal; 1: not, and what differs is printed.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import ViTForImageClassification, pipeline

ROOT = pathlib.Path(__file__).parents[3]


def check_pipeline(folder, data):
    """What is wrong with it; prints its accuracy on data/CLASS/*."""
    classify = pipeline("image-classification", model=folder)
    written = json.loads((pathlib.Path(folder) / "preprocessor_config.json").read_text())
    problems = [f"{key}: {getattr(classify.image_processor, key)} instead of {written[key]}"
                for key in ("image_mean", "image_std") if list(getattr(classify.image_processor, key)) != written[key]]
    images = sorted(pathlib.Path(data).glob("*/*")) if data else []
    right = sum(classify(str(path), top_k=1)[0]["label"] == path.parent.name for path in images)
    if images:
        print(f"{data}: {right} of {len(images)} images right, {100 * right / len(images):.1f} %")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--tool", default=ROOT / "build/release/tests/unit/models/model_logits")
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--data")
    args = parser.parse_args()

    model, info = ViTForImageClassification.from_pretrained(
        args.folder, dtype=torch.float64, output_loading_info=True, local_files_only=True)
    problems = [f"{kind}: {sorted(map(str, info[kind]))}"
                for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs") if info.get(kind)]

    config = model.eval().config
    torch.manual_seed(1)
    size = config.image_size
    height, width = (size, size) if isinstance(size, int) else size
    pixels = torch.randn(args.images, config.num_channels, height, width, dtype=torch.float64)
    with tempfile.TemporaryDirectory() as scratch:
        save_file({"pixel_values": pixels}, f"{scratch}/inputs.safetensors")
        subprocess.run([args.tool, args.folder, f"{scratch}/inputs.safetensors", f"{scratch}/out.safetensors"],
                       check=True)
        ours = load_file(f"{scratch}/out.safetensors")["logits"]
    with torch.no_grad():
        theirs = model(pixel_values=pixels).logits
    difference = ((ours - theirs).norm() / theirs.norm()).item()
    if not difference <= 1e-10:
        problems.append(f"logits differ by {difference:.3g} of their norm")
    problems += check_pipeline(args.folder, args.data)
    print(f"{args.folder}: {sum(p.numel() for p in model.parameters()):,} parameters, labels "
          f"{list(config.id2label.values())}, logits {tuple(theirs.shape)}, relative difference {difference:.3g}")
    print(*problems or ["equal"], sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
