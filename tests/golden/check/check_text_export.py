"""Checks that the folder of a model of text that trireme has written (a run's model/: gpt2, llama, bert) is Hugging
Face's: transformers loads it with no missing, unexpected or misshapen key, every tensor has the dtype that config.json
says and the shape that transformers would write, and the logits of random padded sentences are equal in float64, within
1e-5 of their norm (transformers computes a Llama's norms and angles in float32). The ids of special tokens that
transformers takes up are those of config.json and generation_config.json, and no defaults of its own; --from FOLDER: they
are those of the folder with the weights that the training began with, and so are its chat template and other keys.

Run:  cmake --build --preset release --target model_logits
      python tests/golden/check/check_text_export.py runs/gpt2/model [--tool PATH] [--sentences 4] [--from FOLDER]
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

ROOT = pathlib.Path(__file__).parents[3]


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


IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
DECIDED = {"dtype", "torch_dtype", "transformers_version", "architectures", "id2label", "label2id"}


def check_ids(folder, model, written):
    """What is wrong with the ids that a generation would use."""
    problems = [f"{key}: {getattr(model.config, key)} instead of {written.get(key)}"
                for key in IDS if key in written and getattr(model.config, key) != written[key]]
    if not model.can_generate():
        return problems
    problems += [f"{key} is missing, so transformers takes {getattr(model.config, key)}"
                 for key in IDS[:2] if key not in written and getattr(model.config, key) is not None]
    path = pathlib.Path(folder) / "generation_config.json"
    stored = json.loads(path.read_text()) if path.exists() else written
    theirs = (transformers.GenerationConfig.from_pretrained(folder) if path.exists() else model.generation_config)
    problems += [f"generation: {key}: {getattr(theirs, key)} instead of {stored.get(key)}"
                 for key in IDS if getattr(theirs, key) != stored.get(key)]
    print("ids", {key: getattr(theirs, key) for key in IDS})
    return problems


def check_origin(folder, origin, written):
    """What is lost of the folder that the training began with."""
    folder, origin = pathlib.Path(folder), pathlib.Path(origin)
    before = json.loads((origin / "config.json").read_text())
    problems = [f"{key}: {written.get(key)} instead of {value}" for key, value in before.items()
                if key not in DECIDED and (key not in written or written[key] != value)]
    for name in ("generation_config.json", "chat_template.jinja"):
        if (origin / name).exists() and not (folder / name).exists():
            problems.append(f"{name} is lost")
        elif (origin / name).exists() and (folder / name).read_bytes() != (origin / name).read_bytes():
            problems.append(f"{name} is changed")
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
    parser.add_argument("--tool", default=ROOT / "build/release/tests/unit/models/model_logits")
    parser.add_argument("--sentences", type=int, default=4)
    parser.add_argument("--from", dest="origin")
    args = parser.parse_args()

    written = json.loads((pathlib.Path(args.folder) / "config.json").read_text())
    kind = getattr(transformers, written["architectures"][0])
    model, info = kind.from_pretrained(args.folder, dtype=torch.float64, output_loading_info=True,
                                       local_files_only=True)
    problems = [f"{key}: {sorted(map(str, info[key]))}"
                for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs") if info.get(key)]
    problems += check_files(args.folder, model, written)
    problems += check_ids(args.folder, model, written)
    if args.origin:
        problems += check_origin(args.folder, args.origin, written)

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
