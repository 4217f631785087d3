"""Makes tests/golden/augment: what torchvision's RandAugment, Resize and CenterCrop make of small images.

Image tensors are uint8 [H, W, C], as the library holds them. `rgb` and `grey` are images; `rgb.ShearX.-9` is the one
after the operation ShearX with magnitude -9 of 30. `tall` and `wide` are images, too; `tall.20` is the one with its
shorter side resized to 20 pixels, and then the central crop of 16 x 16.

Run:  python tests/golden/make/make_augment.py      (torchvision 0.26, torch 2.11; the output is committed)
"""
import pathlib

import torch
from safetensors.torch import save_file
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

OUT = pathlib.Path(__file__).parents[1] / "augment"
SIDE = 16


def scene(channels, height, width):
    """Waves, an edge and noise; values from 20 to 230, so that autocontrast has something to stretch."""
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    planes = []
    for channel in range(channels):
        plane = 110 + 50 * torch.sin(x * (0.3 + 0.2 * channel) + y * 0.4) + 40 * ((x + 2 * y) % 11 < 4)
        planes.append(plane + torch.randn(height, width) * 8)
    return torch.stack(planes).clamp(20, 230).to(torch.uint8)


def rand_augment(name, image, magnitude):
    transform = v2.RandAugment()
    magnitudes, _ = transform._AUGMENTATION_SPACE[name]
    height, width = image.shape[-2:]
    strengths = magnitudes(31, height, width)
    strength = 0.0 if strengths is None else float(strengths[abs(magnitude)])
    if magnitude < 0:
        strength = -strength
    return transform._apply_image_or_video_transform(image, name, strength, transform.interpolation, transform._fill)


def main():
    torch.manual_seed(21)
    images = {"rgb": scene(3, 16, 19), "grey": scene(1, 30, 36), "tall": scene(1, 37, 24), "wide": scene(3, 26, 45)}
    results = dict(images)
    for name, (magnitudes, signed) in v2.RandAugment._AUGMENTATION_SPACE.items():
        fixed = magnitudes(31, 1, 1) is None
        for magnitude in [0] if fixed else [-9, 23] if signed else [9, 23]:
            results[f"rgb.{name}.{magnitude}"] = rand_augment(name, images["rgb"], magnitude)
        magnitude = 0 if fixed else 9
        results[f"grey.{name}.{magnitude}"] = rand_augment(name, images["grey"], magnitude)
    for name, shorter in (("tall", 20), ("tall", 16), ("wide", 17), ("wide", 19), ("wide", 40)):
        resized = F.resize(images[name], [shorter], interpolation=v2.InterpolationMode.BILINEAR, antialias=True)
        results[f"{name}.{shorter}"] = F.center_crop(resized, [SIDE, SIDE])
    OUT.mkdir(exist_ok=True)
    path = OUT / "expected.safetensors"
    last = {key: value.permute(1, 2, 0).clone(memory_format=torch.contiguous_format) for key, value in results.items()}
    save_file(last, path)
    print(path, len(results), "tensors,", path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
