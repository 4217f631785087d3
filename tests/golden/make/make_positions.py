"""Writes vit/positions_24px.safetensors and vit/positions_24x32px.safetensors: the position embeddings of
vit/model.safetensors, which are for images of 16 x 16 pixels, for images of 24 x 24 and of 24 x 32 (height x width), as
Hugging Face's ViT interpolates them (interpolate_pos_encoding).

Run with a Python that has torch 2.11:  python tests/golden/make/make_positions.py
"""
import json
import struct
from pathlib import Path

import torch

NAME, HERE, PATCH = "vit.embeddings.position_embeddings", Path(__file__).parents[1] / "vit", 4


def read(path, name):
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    entry = json.loads(data[8:8 + size])[name]
    begin, end = entry["data_offsets"]
    dtype = {"F64": torch.float64, "F32": torch.float32}[entry["dtype"]]
    return torch.frombuffer(bytearray(data[8 + size + begin:8 + size + end]), dtype=dtype).view(entry["shape"])


stored = read(HERE / "model.safetensors", NAME).double()
side, hidden = int((stored.shape[1] - 1) ** 0.5), stored.shape[2]
grid = stored[:, 1:].reshape(1, side, side, hidden).permute(0, 3, 1, 2)
for pixels, height, width in (("24px", 24, 24), ("24x32px", 24, 32)):
    scaled = torch.nn.functional.interpolate(
        grid, size=(height // PATCH, width // PATCH), mode="bicubic", align_corners=False)
    out = torch.cat([stored[:, :1], scaled.permute(0, 2, 3, 1).reshape(1, -1, hidden)], dim=1).contiguous()
    raw = out.numpy().tobytes()
    header = json.dumps({NAME: {"dtype": "F64", "shape": list(out.shape), "data_offsets": [0, len(raw)]}}).encode()
    header += b" " * (-len(header) % 8)
    (HERE / f"positions_{pixels}.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + raw)
