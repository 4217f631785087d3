"""Writes checkpoint.safetensors with the format's own library, for tests/unit/checkpoint: every dtype that we train or
store in, a scalar, an empty tensor, and names that need care in JSON. Element i of each tensor is i - 2 (bool: odd i).

Run with a Python that has torch and safetensors:  python tests/golden/make/make_checkpoint.py
"""
import os

import safetensors.torch
import torch

DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]


def tensor(dtype, shape):
    count = 1
    for extent in shape:
        count *= extent
    index = torch.arange(count)
    values = index % 2 == 1 if dtype == "bool" else index - (0 if dtype == "uint8" else 2)
    return values.to(getattr(torch, dtype)).reshape(shape)


tensors = {f"{dtype}.weight": tensor(dtype, (2, 3)) for dtype in DTYPES}
tensors["scalar"] = tensor("float32", ())
tensors["empty"] = tensor("float32", (0, 4))
tensors['a "quoted" name/ü'] = tensor("float32", (5,))
path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "checkpoint.safetensors")
safetensors.torch.save_file(tensors, path, metadata={"format": "pt", "note": "made by Python"})
print(path, os.path.getsize(path), "bytes")
