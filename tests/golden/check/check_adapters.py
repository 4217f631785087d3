"""Checks that PEFT reads the adapters of a run of trireme on a model of text (gpt2, llama, bert) as the run's own
model: the logits of random sentences by PeftModel.from_pretrained(base, RUN/model) equal in float64 those of
RUN/model-merged, and no tensor is missing in the adapters' file or left over. The run needs lora.merge = true and, for
exact numbers, train.precision = "fp64" and export_dtype unset.

Run:  python tests/golden/check/check_adapters.py runs/lora
Needs torch, transformers 5, peft and safetensors. Exit status 0: equal; 1: not, and what differs is printed.
"""
import argparse
import json
import pathlib
import sys

import torch
import transformers
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import load_file


def load(folder, architecture):
    # "sdpa": "eager" has a softmax in float32.
    return getattr(transformers, architecture).from_pretrained(
        folder, dtype=torch.float64, attn_implementation="sdpa").eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("run", type=pathlib.Path)
    arguments = parser.parse_args()
    adapters, merged = arguments.run / "model", arguments.run / "model-merged"
    architecture = json.loads((merged / "config.json").read_text())["architectures"][0]
    base = json.loads((adapters / "adapter_config.json").read_text())["base_model_name_or_path"]
    peft = PeftModel.from_pretrained(load(base, architecture), str(adapters)).double().eval()
    own = load(merged, architecture)

    problems = []
    theirs = set(get_peft_model_state_dict(peft, save_embedding_layers=False))
    ours = set(load_file(adapters / "adapter_model.safetensors"))
    if theirs != ours:
        problems.append(f"only PEFT's file has {sorted(theirs - ours)}; only ours has {sorted(ours - theirs)}")
    torch.manual_seed(0)
    ids = torch.randint(0, own.config.vocab_size, (4, min(12, own.config.max_position_embeddings)))
    with torch.no_grad():
        want, got = own(input_ids=ids).logits, peft(input_ids=ids).logits
    off = (want - got).norm() / want.norm()
    print(f"{architecture}: {len(ours)} tensors, logits differ by {off:.1e} of their norm")
    if not off <= 1e-6:
        problems.append("the logits differ")
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
