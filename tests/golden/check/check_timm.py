"""Checks that a folder in timm's format, written by trireme (a ResNet's model/, or `trireme checkpoint export --names
timm`), is timm's: timm.create_model("local-dir:FOLDER", pretrained=True) gives the same logits in float64, within 1e-12
of their norm, has the names of the classes, and timm.data prepares an image of the model's size as
preprocessor_config.json says.

Run:  cmake --build --preset release --target model_logits
      python tests/golden/check/check_timm.py FOLDER [--tool PATH] [--images 8]
Needs torch, timm 1.0, Pillow and safetensors. Exit status 0: all equal; 1: not, and what differs is printed.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).parents[3]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--tool", default=ROOT / "build/release/tests/unit/models/model_logits")
    parser.add_argument("--images", type=int, default=8)
    args = parser.parse_args()

    model = timm.create_model(f"local-dir:{args.folder}", pretrained=True).eval()
    # create_model() copies the tensors into float32.
    missing, unexpected = model.double().load_state_dict(load_file(args.folder / "model.safetensors"), strict=False)
    problems = [f"tensors: {missing} {unexpected}"] if unexpected or missing else []

    prepared = timm.data.resolve_data_config(model=model)
    channels, height, width = prepared["input_size"]
    torch.manual_seed(1)
    pixels = torch.randn(args.images, channels, height, width, dtype=torch.float64)
    with tempfile.TemporaryDirectory() as scratch:
        save_file({"pixel_values": pixels}, f"{scratch}/inputs.safetensors")
        subprocess.run([args.tool, args.folder, f"{scratch}/inputs.safetensors", f"{scratch}/out.safetensors"], check=True)
        ours = load_file(f"{scratch}/out.safetensors")["logits"]
    with torch.no_grad():
        theirs = model(pixels)
    distance = ((ours - theirs).norm() / theirs.norm()).item()
    if not distance <= 1e-12:
        problems.append(f"the logits differ by {distance:.3g} of their norm")

    written = json.loads((args.folder / "preprocessor_config.json").read_text())
    image = torch.randint(0, 256, (height, width, 3), dtype=torch.uint8)
    made = timm.data.create_transform(**prepared)(Image.fromarray(image.numpy()))
    mean, std = (torch.tensor(written[key]).view(3, 1, 1) for key in ("image_mean", "image_std"))
    if not torch.allclose(made, (image.permute(2, 0, 1) / 255 - mean) / std, atol=1e-6):
        problems.append("images are prepared otherwise")
    names = json.loads((args.folder / "config.json").read_text())["id2label"]
    if list(model.pretrained_cfg["label_names"]) != [names[str(i)] for i in range(len(names))]:
        problems.append("other names of the classes")
    print("\n".join(problems) or f"equal: {args.folder}, logits within {distance:.2g}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
