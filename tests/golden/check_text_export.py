"""Checks that the folder of a model of text that trireme has written (a run's model/: gpt2, llama, bert) is Hugging
Face's: transformers loads it with no missing, unexpected or misshapen key, every tensor has the dtype that config.json
says and the shape that transformers would write, and the logits of random padded sentences are equal in float64, within
1e-5 of their norm (transformers computes a Llama's norms and angles in float32).

Run:  cmake --build --preset release --target text_logits
      python tests/golden/check_text_export.py runs/gpt2/model [--tool PATH] [--sentences 4]
Needs torch, transformers 5 and safetensors. Exit status 0: all equal; 1: not, and what differs is printed.
"""
import argparse
import copy
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).parents[2]


def headers(folder):
    """Shape and dtype of every tensor of the folder's safetensors files, by name."""
    out = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():
                tensor = file.get_slice(name)
                assert name not in out, f"{name} is in two files"
                out[name] = (tuple(tensor.get_shape()), tensor.get_dtype())
    return out


def check_files(folder, model, config):
    """What is wrong with the files of tensors, compared with those that transformers writes."""
    ours = headers(folder)
    with tempfile.TemporaryDirectory() as scratch:
        copy.deepcopy(model).to(getattr(torch, config["dtype"])).save_pretrained(scratch)
        theirs = headers(scratch)
    problems = [f"{name}: {ours.get(name)} instead of {theirs.get(name)}"
                for name in sorted(ours.keys() | theirs.keys()) if ours.get(name) != theirs.get(name)]
    index = pathlib.Path(folder) / "model.safetensors.index.json"
    if index.exists() and set(json.loads(index.read_text())["weight_map"]) != set(ours):
        problems.append("the index does not have the files' tensors")
    return problems


def sentences(count, config):
    """Padded at the end, of lengths from the longest down."""
    longest = min(24, config.max_position_embeddings)
    ids = torch.randint(0, config.vocab_size, (count, longest))
    mask = torch.ones_like(ids)
    for row in range(count):
        mask[row, max(1, longest - 3 * row):] = 0
    return {"input_ids": ids, "attention_mask": mask}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--tool", default=ROOT / "build/release/tests/unit/models/text_logits")
    parser.add_argument("--sentences", type=int, default=4)
    args = parser.parse_args()

    written = json.loads((pathlib.Path(args.folder) / "config.json").read_text())
    kind = getattr(transformers, written["architectures"][0])
    model, info = kind.from_pretrained(args.folder, dtype=torch.float64, output_loading_info=True,
                                       local_files_only=True)
    problems = [f"{key}: {sorted(map(str, info[key]))}"
                for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs") if info.get(key)]
    problems += check_files(args.folder, model, written)

    torch.manual_seed(1)
    inputs = sentences(args.sentences, model.eval().config)
    with tempfile.TemporaryDirectory() as scratch:
        save_file(inputs, f"{scratch}/inputs.safetensors")
        subprocess.run([args.tool, args.folder, f"{scratch}/inputs.safetensors", f"{scratch}/out.safetensors"],
                       check=True)
        ours = load_file(f"{scratch}/out.safetensors")["logits"]
    with torch.no_grad():
        theirs = model(**inputs).logits
    if theirs.dim() == 3:  # the outputs of padding tokens are not compared
        counts = inputs["attention_mask"].unsqueeze(2)
        ours, theirs = ours * counts, theirs * counts
    difference = ((ours - theirs).norm() / theirs.norm()).item()
    if not difference <= 1e-5:
        problems.append(f"logits differ by {difference:.3g} of their norm")
    print(f"{args.folder}: {kind.__name__} in {written['dtype']}, {sum(p.numel() for p in model.parameters()):,} "
          f"parameters, logits {tuple(theirs.shape)}, relative difference {difference:.3g}")
    print(*problems or ["equal"], sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
