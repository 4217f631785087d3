#!/usr/bin/env python3
"""Writes seeds of the fuzz targets (tests/fuzz): scripts/make_fuzz_corpus.py FOLDER makes FOLDER/safetensors and
FOLDER/manifest. Each seed is a well-formed file, or one that has a single defect. The committed corpus has the seeds
and what a fuzzer found from them, minimised: see scripts/fuzz.sh."""
import json
import pathlib
import struct
import sys
import zlib

SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1, "U16": 2,
         "U32": 4, "U64": 8, "C64": 8, "F8_E4M3": 1, "F8_E5M2": 1}


def safetensors(header, data=b"", length=None):
    text = (header if isinstance(header, str) else json.dumps(header, separators=(",", ":"))).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors_seeds():
    data = bytes(range(16))
    good = {"a": entry("F32", [2], 0, 8), "b": entry("U8", [2, 4], 8, 16)}
    yield "good", safetensors(good, data)
    yield "metadata", safetensors({"__metadata__": {"format": "pt"}} | good, data)
    for dtype, size in SIZES.items():
        yield f"dtype_{dtype}", safetensors({"a": entry(dtype, [3], 0, 3 * size)}, bytes(3 * size))
    yield "empty", safetensors({})
    yield "scalar", safetensors({"a": entry("F32", [], 0, 4)}, data[:4])
    yield "no_elements", safetensors({"a": entry("F32", [0, 7], 0, 0)})
    yield "huge_and_empty", safetensors({"a": entry("F32", [2**58, 0, 2**58], 0, 0)})
    yield "out_of_range", safetensors({"a": entry("F32", [2], 0, 8)}, data[:4])
    yield "overlap", safetensors({"a": entry("F32", [2], 0, 8), "b": entry("F32", [3], 4, 16)}, data)
    yield "hole", safetensors({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 8, 12)}, data[:12])
    yield "backwards", safetensors({"a": entry("F32", [1], 4, 0)}, data[:4])
    yield "wrong_size", safetensors({"a": entry("F32", [3], 0, 16)}, data)
    yield "negative", safetensors({"a": entry("F32", [-1], 0, 4)}, data[:4])
    yield "overflow", safetensors({"a": entry("F32", [2**32, 2**32], 0, 16)}, data)
    yield "fraction", safetensors({"a": entry("F32", [1.5], 0, 4)}, data[:4])
    yield "many_dims", safetensors({"a": entry("F32", [1] * 65, 0, 4)}, data[:4])
    yield "unknown_dtype", safetensors({"a": entry("F33", [1], 0, 4)}, data[:4])
    yield "twice", safetensors('{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
                               '"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}', data[:2])
    yield "long_header", safetensors(good, data, 2**63)
    yield "header_of_100MB", safetensors(good, data, 100_000_000)
    yield "header_beyond", safetensors(good, b"", 4096)
    yield "no_object", safetensors("[1]")
    yield "deep", safetensors('{"a":' + "[" * 200 + "]" * 200 + "}")
    yield "bad_metadata", safetensors({"__metadata__": {"a": 1}})
    yield "path", safetensors({"../../etc/passwd": entry("U8", [1], 0, 1)}, b"x")
    yield "short", b"\x00\x01"
    yield "lfs", b"version https://git-lfs.github.com/spec/v1\n"
    yield "pickle", b"PK\x03\x04" + data


def padded(header, data):
    """As Trireme writes it: the data begin at a multiple of 8."""
    text = json.dumps(header, separators=(",", ":"))
    return safetensors(text + " " * (-len(text) % 8), data)


def manifest_seeds():
    # The files that manifest_fuzz.cpp puts beside the manifest.
    values = struct.pack("<8f", *range(8))
    a = padded({"u": entry("I64", [3], 0, 24), "t": entry("F32", [2, 2], 24, 40)}, struct.pack("<3q", 0, 1, 2) + values[:16])
    b = padded({"t": entry("F32", [2, 2], 0, 16), "v": entry("F16", [4], 16, 24)},
               values[16:] + struct.pack("<4e", 0, 1, 2, 3))

    def listed(content):
        return {"bytes": len(content), "crc32": f"{zlib.crc32(content):08x}"}

    def manifest(t, x=b"", **more):
        files = {"a": listed(a), "b": listed(b), "x": listed(x)}
        out = {"format": 2, "files": files, "tensors": {"weights": {"t": t}}}
        return json.dumps(out | more, separators=(",", ":")).encode() + (b"\0" + x if x else b"")

    halves = [{"file": "a", "dim": 0, "ranges": [[0, 2]]}, {"file": "b", "dim": 0, "ranges": [[2, 4]]}]

    def tensor(**more):
        return {"dtype": "F32", "shape": [4, 2], "slices": halves} | more

    yield "good", manifest(tensor())
    yield "transposed", manifest(tensor(stored_transposed=True))
    yield "unstacked", manifest(tensor(stored_unstacked="e.*.t"))
    yield "unstacked_without_rows", manifest(tensor(shape=[2**40, 0], slices=[{"file": "a"}], stored_unstacked="e.*.t"))
    yield "flat", manifest(tensor(shape=[4], slices=[{"file": "x", "flat": [0, 4]}]),
                           safetensors({"t": entry("F32", [4], 0, 16)}, bytes(16)))
    yield "cut_and_flat", manifest(
        tensor(slices=[{"file": "x", "dim": 1, "ranges": [[0, 1]], "flat": [0, 4]},
                       {"file": "x", "dim": 1, "ranges": [[1, 2]], "flat": [0, 4]}]),
        safetensors({"t": entry("F32", [4], 0, 16)}, bytes(32)))
    quarters = [{"file": "x", "cuts": [{"dim": 0, "ranges": [[2 * i, 2 * i + 2]]}, {"dim": 1, "ranges": [[j, j + 1]]}]}
                for i in range(2) for j in range(2)]
    yield "two_cuts", manifest(tensor(slices=quarters), safetensors({"t": entry("F32", [2, 1], 0, 8)}, bytes(32)))
    yield "two_cuts_of_a_dim", manifest(tensor(slices=[{"file": "a", "cuts": [{"dim": 0, "ranges": [[0, 2]]}] * 2}]))
    yield "file_of_its_own", manifest(tensor(slices=[{"file": "x"}]),
                                      safetensors({"t": entry("F32", [4, 2], 0, 32)}, bytes(32)))
    yield "other_shape", manifest(tensor(slices=[{"file": "x"}]),
                                  safetensors({"t": entry("F32", [2, 4], 0, 32)}, bytes(32)))
    yield "other_dtype", manifest(tensor(dtype="F16"))
    yield "half_is_missing", manifest(tensor(slices=halves[:1]))
    yield "overlap", manifest(tensor(slices=[halves[0], halves[0]]))
    yield "range_beyond", manifest(tensor(slices=[{"file": "a", "dim": 0, "ranges": [[0, 5]]}]))
    yield "ranges_overlap", manifest(tensor(slices=[{"file": "a", "dim": 0, "ranges": [[0, 2], [0, 2]]}]))
    yield "no_ranges", manifest(tensor(slices=[{"file": "a", "dim": 0, "ranges": []}]))
    yield "flat_beyond", manifest(tensor(slices=[{"file": "a", "flat": [0, 9]}]))
    yield "dim_beyond", manifest(tensor(slices=[{"file": "a", "dim": 2, "ranges": [[0, 4]]}]))
    yield "huge_and_empty", manifest(tensor(shape=[0, 2**62], slices=[{"file": "a"}]))
    yield "overflow", manifest(tensor(shape=[2**32, 2**32]))
    yield "negative", manifest(tensor(shape=[-4, 2]))
    yield "scalar", manifest(tensor(shape=[], slices=[{"file": "a"}]))
    yield "unlisted", manifest(tensor(slices=[{"file": "c"}]))
    for name in ["../a", "/etc/passwd", "..", ".", "", "a\0b", "a/b"]:
        yield f"path_{name.encode().hex()}", manifest(tensor(), files={"a": listed(a), "b": listed(b), name: listed(b"")})
    yield "fractions", manifest(tensor(shape=[4.0, 2.5]))
    yield "huge_float", manifest(tensor(), format=1e300)
    yield "bad_crc", manifest(tensor(), files={"a": {"bytes": 1, "crc32": "0x000000"}})
    yield "format_1", json.dumps({"format": 1, "files": {"a": listed(a)}}).encode()
    yield "format_3", manifest(tensor(), format=3)
    yield "deep", b'{"format":' + b"[" * 200 + b"]" * 200 + b"}"
    yield "no_json", b"manifest"
    yield "empty", b""


def main():
    for name, seeds in {"safetensors": safetensors_seeds(), "manifest": manifest_seeds()}.items():
        folder = pathlib.Path(sys.argv[1]) / name
        folder.mkdir(parents=True, exist_ok=True)
        for seed, content in seeds:
            (folder / seed).write_bytes(content)


if __name__ == "__main__":
    main()
