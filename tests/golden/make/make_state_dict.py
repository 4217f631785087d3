"""Makes tests/golden/state_dict: files of torch.save, for tests/unit/checkpoint/state_dict_test.cpp. Element i of each
tensor is i - 2 in row-major order (bool: odd i; uint8: i), unless it says otherwise here.

Run:  python tests/golden/make/make_state_dict.py      (torch 2.11, NumPy 2.4; the output is committed)
"""
import argparse
import collections
import os
import pathlib
import zipfile

import numpy
import torch

OUT = pathlib.Path(__file__).parents[1] / "state_dict"
DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]


def tensor(shape, dtype="float32"):
    index = torch.arange(torch.Size(shape).numel())
    values = index % 2 == 1 if dtype == "bool" else index - (0 if dtype == "uint8" else 2)
    return values.to(getattr(torch, dtype)).reshape(shape)


def network():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    with torch.no_grad():
        for value in model.state_dict().values():
            value.copy_(tensor(value.shape, str(value.dtype).split(".")[1]))
    return model


class Attack:
    """Its pickle runs a command when it is loaded."""

    def __reduce__(self):
        return os.system, ("touch state_dict_attack",)


def views():
    base = tensor((4, 3))
    tied = tensor((2, 2))
    return collections.OrderedDict(
        whole=base, transposed=base.t(), row=base[2], columns=base[:, 1:], expanded=base[0].expand(5, 3), one=tied,
        two=tied)


def pending_negative():
    return torch.view_as_complex(torch.ones(2, 2)).conj().imag


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    model = network()
    weights = model.state_dict()
    every = {f"{dtype}.weight": tensor((2, 3), dtype) for dtype in DTYPES}
    every |= {"scalar": tensor(()), "empty": tensor((0, 4)), 'a "quoted" name/ü': tensor((5,))}
    torch.save(weights, OUT / "plain.pth")
    torch.save(every, OUT / "dtypes.pth")
    torch.save(views(), OUT / "views.pth")
    torch.save(dict(model.named_parameters()), OUT / "parameters.pth", pickle_protocol=4)
    extra = {"epoch": 3, "best": 0.5, "seed": 2**70, "ema": weights, "list": [None, True, ("a", -(2**40))]}
    torch.save({"model": weights} | extra, OUT / "wrapped.pth")
    torch.save({"state_dict": weights, "model": weights}, OUT / "two.pth")
    for key in ("model_state_dict", "module", "net", "network"):
        torch.save({"epoch": 3, key: weights}, OUT / f"{key}.pth")
    # As the ImageNet example of PyTorch and timm do it, with objects of all kinds beside the tensors.
    beside = {"best_acc1": tensor(()), "args": argparse.Namespace(lr=0.1), "score": numpy.float64(0.5),
              "size": torch.Size([2, 3]), "dtype": torch.float32, "device": torch.device("cpu"), "path": OUT.name,
              "folder": pathlib.PurePosixPath("a"), "counts": collections.Counter("aab"), "set": {1, 2}, "bytes": b"ab",
              "array": numpy.arange(3), "attack": Attack(), "optimizer": {"state": {0: {"exp_avg": tensor((3,))}}}}
    for protocol in (2, 4):
        torch.save({"state_dict": weights} | beside, OUT / f"checkpoint_{protocol}.pth", pickle_protocol=protocol)
    torch.save({"state_dict": weights} | beside, OUT / "checkpoint_old.pth", _use_new_zipfile_serialization=False)
    torch.save({"weights": weights, "epoch": 3}, OUT / "elsewhere.pth")
    torch.save([tensor((2,))], OUT / "list.pth")
    torch.save({"weight": Attack()}, OUT / "attack.pth")
    torch.save(model, OUT / "whole.pth")
    torch.save({"negative": pending_negative()}, OUT / "negative.pth")
    torch.save(weights, OUT / "old.pth", _use_new_zipfile_serialization=False)
    torch.save(views(), OUT / "old_views.pth", _use_new_zipfile_serialization=False)
    torch.save(every, OUT / "old_dtypes.pth", _use_new_zipfile_serialization=False)
    torch.jit.save(torch.jit.script(torch.nn.Identity()), OUT / "script.pt")
    with zipfile.ZipFile(OUT / "plain.pth") as plain, \
            zipfile.ZipFile(OUT / "compressed.pth", "w", zipfile.ZIP_DEFLATED) as compressed:
        for name in plain.namelist():
            compressed.writestr(zipfile.ZipInfo(name), plain.read(name), zipfile.ZIP_DEFLATED)
    print(*(f"{path.name} {path.stat().st_size}" for path in sorted(OUT.iterdir())), sep="\n")
