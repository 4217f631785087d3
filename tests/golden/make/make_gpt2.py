"""Makes tests/golden/gpt2: a tiny GPT-2 of Hugging Face transformers in float64 with its inputs (padded sentences, the
positions of some tokens not in order), logits, loss and the gradient of every parameter, under the names and in the
layout on disk: weights of attention and MLP are [in, out].

Run:  python tests/golden/make/make_gpt2.py      (transformers 5, torch 2.11; the output is committed)
"""
import copy
import pathlib
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

OUT = pathlib.Path(__file__).parents[1] / "gpt2"
LENGTHS, LONGEST, VOCABULARY = (7, 3, 5), 7, 13


def saved(model):
    """The model's tensors under their on-disk names."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(f"{folder}/model.safetensors")


def main():
    torch.manual_seed(21)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=4, n_inner=20, n_positions=9, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, layer_norm_epsilon=1e-4, bos_token_id=1, eos_token_id=2)
    config._attn_implementation = "sdpa"
    model = GPT2LMHeadModel(config).double().train()
    with torch.no_grad():  # no zeros and ones: each parameter must matter
        for name, p in model.named_parameters():
            p.copy_(torch.randn(p.shape, dtype=p.dtype) * (0.3 if p.dim() > 1 else 0.1))
            if ".ln_" in name and name.endswith("weight"):
                p.add_(1.0)
    ids = torch.randint(0, VOCABULARY, (len(LENGTHS), LONGEST))
    mask = torch.zeros_like(ids)
    for row, length in enumerate(LENGTHS):
        mask[row, :length] = 1
    positions = torch.arange(LONGEST).repeat(len(LENGTHS), 1)
    positions[2] += 2
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    labels = torch.where(mask == 1, ids, -100)
    logits = model(**inputs).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    loss.backward()

    OUT.mkdir(exist_ok=True)
    model.save_pretrained(OUT)
    (OUT / "generation_config.json").unlink(missing_ok=True)
    gradients = copy.deepcopy(model)
    with torch.no_grad():
        for g, p in zip(gradients.parameters(), model.parameters()):
            g.copy_(p.grad)
    expected = {f"grad.{key}": value.contiguous() for key, value in saved(gradients).items()}
    expected |= inputs | {"labels": labels, "logits": logits.detach().contiguous(),
                          "loss": loss.detach().reshape(1)}
    save_file(expected, OUT / "expected.safetensors")
    print(len(expected), loss.item())


if __name__ == "__main__":
    main()
