"""Makes tests/golden/formats: small images in every format and form that the decoder reads, and Pillow's pixels of them.

For each file, expected.safetensors holds `NAME`: the pixels of convert("RGB"), uint8 [H, W, 3]; `NAME.turned`: those of
exif_transpose(), where they differ; and `NAME.over`: those over the colour BACKGROUND, where there is transparency.

    python tests/golden/make/make_formats.py
"""
import pathlib
import struct

import numpy as np
import torch
from make_pixels import scene
from PIL import Image, ImageOps
from safetensors.torch import save_file

OUT = pathlib.Path(__file__).parents[1] / "formats"
BACKGROUND = (200, 10, 90)
HEIGHT, WIDTH = 21, 26


def transparent(seed):
    """With every alpha, also none and all."""
    image = scene(HEIGHT, WIDTH, seed)
    alpha = np.clip(np.asarray(scene(HEIGHT, WIDTH, seed + 100).convert("L")).astype(int) * 2 - 130, 0, 255)
    image.putalpha(Image.fromarray(alpha.astype(np.uint8)))
    return image


def bmp(name, bits, compression, rows, *, palette=b"", masks=b"", header=40, top_down=False):
    """Writes what Pillow cannot write. rows: the data after the headers."""
    height = -HEIGHT if top_down else HEIGHT
    size = 4 * 5 * header  # any
    info = struct.pack("<IiiHHIIiiII", header, WIDTH, height, 1, bits, compression, size, 0, 0, len(palette) // 4, 0)
    info += masks if header == 40 else masks.ljust(header - 40, b"\0")
    offset = 14 + len(info) + len(palette)
    data = b"BM" + struct.pack("<IHHI", offset + len(rows), 0, 0, offset) + info + palette + rows
    (OUT / name).write_bytes(data)


def padded(row):
    return row + b"\0" * (-len(row) % 4)


def make_bmp():
    rng = np.random.default_rng(5)
    scene(HEIGHT, WIDTH, 20).save(OUT / "colour.bmp")
    scene(HEIGHT, WIDTH, 21).convert("L").save(OUT / "grey.bmp")
    scene(HEIGHT, WIDTH, 22).convert("1").save(OUT / "one_bit.bmp")
    scene(HEIGHT, WIDTH, 23).convert("P", palette=Image.Palette.ADAPTIVE, colors=40).save(OUT / "palette.bmp")
    transparent(24).save(OUT / "plain_32.bmp")  # its fourth byte is no alpha
    values = rng.integers(0, 1 << 16, (HEIGHT, WIDTH)).astype("<u2")
    rows = b"".join(padded(row.tobytes()) for row in values)
    bmp("five_bits.bmp", 16, 0, rows)
    bmp("six_bits.bmp", 16, 3, rows, masks=struct.pack("<III", 0xF800, 0x7E0, 0x1F))
    pixels = np.asarray(transparent(25))[:, :, [2, 1, 0, 3]].tobytes()
    bmp("alpha_top_down.bmp", 32, 3, pixels, masks=struct.pack("<IIII", 0xFF0000, 0xFF00, 0xFF, 0xFF000000), header=108,
        top_down=True)
    palette = bytes(rng.integers(0, 256, 4 * 16).astype(np.uint8))
    # Runs, pixels one by one (padded to 2 bytes), ends of rows, a jump by 3 columns and 2 rows.
    rle8 = (bytes([20, 3, 6, 9, 0, 0]) + bytes([0, 5, 1, 2, 3, 4, 5, 0, 10, 7, 0, 0]) + bytes([4, 8, 0, 2, 3, 2, 9, 10, 0, 0])
            + bytes([26, 1, 0, 0]) * 16 + bytes([0, 1]))
    bmp("runs_8.bmp", 8, 1, rle8, palette=palette)
    rle4 = (bytes([20, 0x3A, 6, 0x9B, 0, 0]) + bytes([0, 5, 0x12, 0x34, 0x50, 0, 10, 0x7C, 0, 0]) + bytes([4, 0x88, 0, 2, 3, 2])
            + bytes([9, 0xA1, 0, 0]) + bytes([26, 0x1E, 0, 0]) * 16 + bytes([0, 1]))
    bmp("runs_4.bmp", 4, 2, rle4, palette=palette)
    old = b"".join(padded(np.asarray(row)[:, ::-1].tobytes()) for row in np.asarray(scene(HEIGHT, WIDTH, 26))[::-1])
    (OUT / "os2.bmp").write_bytes(b"BM" + struct.pack("<IHHIIHHHH", 26 + len(old), 0, 0, 26, 12, WIDTH, HEIGHT, 1, 24) + old)


def make_gif():
    colours = scene(HEIGHT, WIDTH, 30).convert("P", palette=Image.Palette.ADAPTIVE, colors=60)
    colours.save(OUT / "colours.gif", interlace=0)
    colours.save(OUT / "interlaced.gif", interlace=1)
    scene(HEIGHT, WIDTH, 31).convert("L").save(OUT / "grey.gif")
    colours.save(OUT / "transparent.gif", transparency=colours.getpixel((3, 4)))
    others = [scene(HEIGHT, WIDTH, seed).convert("P", palette=Image.Palette.ADAPTIVE, colors=60) for seed in (32, 33)]
    colours.save(OUT / "moving.gif", save_all=True, append_images=others, duration=40)
    # The frame is smaller than the screen, at (4, 3) of it: with and without transparency.
    for source, name in (("colours.gif", "small_frame.gif"), ("transparent.gif", "small_frame_transparent.gif")):
        data = bytearray((OUT / source).read_bytes())
        struct.pack_into("<HH", data, 6, WIDTH + 9, HEIGHT + 5)
        at = data.index(struct.pack("<BHHHH", 0x2C, 0, 0, WIDTH, HEIGHT))
        struct.pack_into("<HH", data, at + 1, 4, 3)
        (OUT / name).write_bytes(data)


def make_tiff():
    colour = scene(HEIGHT, WIDTH, 40)
    for name, compression in (("raw", None), ("lzw", "tiff_lzw"), ("deflate", "tiff_adobe_deflate"), ("packbits", "packbits")):
        colour.save(OUT / f"{name}.tif", compression=compression)
    colour.convert("L").save(OUT / "grey.tif", compression="tiff_lzw")
    colour.convert("1").save(OUT / "fax.tif", compression="group4")
    colour.convert("P", palette=Image.Palette.ADAPTIVE, colors=40).save(OUT / "palette.tif")
    transparent(41).save(OUT / "alpha.tif", compression="tiff_lzw")
    colour.save(OUT / "turned.tif", tiffinfo={274: 6})  # Pillow turns a TIFF without being told
    colour.save(OUT / "pages.tif", save_all=True, append_images=[scene(9, 8, 42)])
    colour.save(OUT / "big.tif", big_tiff=True)
    colour.save(OUT / "jpeg.tif", compression="jpeg", quality=90)
    colour.convert("CMYK").save(OUT / "inks.tif", compression="tiff_lzw")  # libtiff and Pillow round differently


def make_webp():
    scene(HEIGHT, WIDTH, 50).save(OUT / "colour.webp", quality=80)
    scene(HEIGHT, WIDTH, 51).save(OUT / "lossless.webp", lossless=True)
    transparent(52).save(OUT / "alpha.webp", quality=80)
    transparent(53).save(OUT / "alpha_lossless.webp", lossless=True, exact=True)
    frames = [transparent(54), transparent(55)]
    frames[0].save(OUT / "moving.webp", save_all=True, append_images=frames[1:], duration=50, quality=70)


def make_exif():
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        scene(HEIGHT, WIDTH, 60).save(OUT / f"held_{orientation}.jpg", quality=92, exif=exif)
    exif = Image.Exif()
    exif[0x0112] = 8
    scene(HEIGHT, WIDTH, 61).save(OUT / "held.png", exif=exif)
    transparent(62).save(OUT / "held.webp", lossless=True, exif=exif)
    transparent(63).save(OUT / "alpha.png")
    scene(HEIGHT, WIDTH, 64).save(OUT / "colour_key.png", transparency=scene(HEIGHT, WIDTH, 64).getpixel((5, 6)))


def main():
    OUT.mkdir(exist_ok=True)
    for make in (make_bmp, make_gif, make_tiff, make_webp, make_exif):
        make()
    expected = {}
    for path in sorted(OUT.iterdir()):
        if path.suffix == ".safetensors":
            continue
        with Image.open(path) as image:
            image.load()

            def keep(name, picture):
                expected[name] = torch.as_tensor(np.array(picture))

            keep(path.name, image.convert("RGB"))
            if path.suffix not in (".tif", ".tiff") and image.getexif().get(0x0112, 1) != 1:
                keep(path.name + ".turned", ImageOps.exif_transpose(image).convert("RGB"))
            if image.has_transparency_data:
                whole = image.convert("RGBA")
                over = Image.new("RGB", image.size, BACKGROUND)
                over.paste(whole, mask=whole.getchannel("A"))
                keep(path.name + ".over", over)
    save_file({name: value.contiguous() for name, value in expected.items()}, OUT / "expected.safetensors")
    print(len(expected), "pictures")


if __name__ == "__main__":
    main()
