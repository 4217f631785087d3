"""Makes tests/golden/pixels: pictures of every kind the decoder meets, and what transformers makes of them.

For each picture, expected.safetensors holds `NAME.pil` and `NAME.torch`: the pixel_values of ViTImageProcessor at 32
pixels (mean and std 0.5), by its Pillow and by its torchvision backend, in grey levels of 255 (uint8, [32, 32, 3]).

    python tests/golden/make/make_pixels.py
"""
import pathlib

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from transformers import ViTImageProcessor
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

SIZE = 32
OUT = pathlib.Path(__file__).parents[1] / "pixels"


def scene(height, width, seed):
    """Waves and edges of every frequency, so that a wrong filter shows."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    planes = []
    for _ in range(3):
        plane = 128 + 60 * np.sin(x * rng.uniform(0.05, 1.5) + y * rng.uniform(0.05, 1.5))
        plane = np.where((x * rng.uniform(-1, 1) + y * rng.uniform(-1, 1)) % 17 < 5, 255 - plane, plane)
        planes.append(plane + rng.normal(0, 6, plane.shape))
    return Image.fromarray(np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8))


def write_16_bit(path, image):
    """Pillow writes no 16-bit colour: a PNG by hand, its low bytes unlike its high ones."""
    import struct
    import zlib

    high = np.asarray(image).astype(">u2")
    values = (high * 256 + (high * 7) % 256).astype(">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in values)

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", image.width, image.height, 16, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def main():
    OUT.mkdir(exist_ok=True)
    scene(75, 100, 1).save(OUT / "colour.jpg", quality=90)
    scene(67, 41, 2).save(OUT / "colour_444.jpg", quality=85, subsampling=0)
    scene(50, 64, 3).save(OUT / "progressive.jpg", quality=80, progressive=True)
    scene(20, 24, 4).save(OUT / "smaller.jpg", quality=95)
    scene(60, 60, 5).convert("L").save(OUT / "grey.jpg", quality=90)
    scene(45, 70, 6).convert("CMYK").save(OUT / "inks.jpg", quality=90)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees: not to be applied
    scene(40, 80, 7).save(OUT / "turned.jpg", quality=90, exif=exif)
    scene(53, 37, 8).save(OUT / "colour.png")
    scene(32, 32, 9).save(OUT / "same_size.png")
    scene(40, 44, 10).convert("L").save(OUT / "grey.png")
    scene(40, 44, 11).convert("1").save(OUT / "one_bit.png")
    scene(50, 40, 12).convert("P", palette=Image.Palette.ADAPTIVE, colors=30).save(OUT / "palette.png")
    alpha = scene(44, 52, 13)
    alpha.putalpha(scene(44, 52, 14).convert("L"))
    alpha.save(OUT / "alpha.png")
    write_16_bit(OUT / "sixteen.png", scene(48, 36, 15))

    sizes = {"size": {"height": SIZE, "width": SIZE}}
    expected = {}
    for path in sorted(OUT.iterdir()):
        if path.suffix == ".safetensors":
            continue
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        for kind, make in (("pil", ViTImageProcessorPil), ("torch", ViTImageProcessor)):
            values = torch.as_tensor(make(**sizes)(image, return_tensors="pt")["pixel_values"])[0]
            levels = (values.double() * 0.5 + 0.5) * 255
            assert (levels - levels.round()).abs().max() < 1e-3
            expected[f"{path.name}.{kind}"] = levels.round().to(torch.uint8).permute(1, 2, 0).contiguous()
    save_file(expected, OUT / "expected.safetensors")


if __name__ == "__main__":
    main()
