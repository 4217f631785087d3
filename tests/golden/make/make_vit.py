"""Makes tests/golden/vit: a tiny ViTForImageClassification of Hugging Face transformers in float64, with its inputs,
logits, loss and the gradient of every parameter. Names are those of the file on disk (transformers renames modules in
memory; it is asked to save the gradients as if they were weights, so that its own renaming applies).

Run:  python tests/golden/make/make_vit.py      (transformers 5, torch 2.11; the output is committed)
"""
import copy
import pathlib
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import ViTConfig, ViTForImageClassification

OUT = pathlib.Path(__file__).parents[1] / "vit"
BATCH, LABELS = 3, 5


def saved(model):
    """The model's tensors under their on-disk names."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(f"{folder}/model.safetensors")


def main():
    torch.manual_seed(20)
    config = ViTConfig(
        image_size=16, patch_size=4, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=48,
        num_labels=LABELS, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, layer_norm_eps=1e-12)
    model = ViTForImageClassification(config).double().train()
    with torch.no_grad():  # no zeros and ones: each parameter must matter
        for name, p in model.named_parameters():
            p.copy_(torch.randn(p.shape, dtype=p.dtype) * (0.2 if p.dim() > 1 else 0.1))
            if "norm" in name and name.endswith("weight"):
                p.add_(1.0)
    pixels = torch.randn(BATCH, 3, 16, 16, dtype=torch.float64)
    labels = torch.tensor([4, 0, 2])
    out = model(pixel_values=pixels, labels=labels)
    out.loss.backward()

    OUT.mkdir(exist_ok=True)
    model.save_pretrained(OUT)
    gradients = copy.deepcopy(model)
    with torch.no_grad():
        for g, p in zip(gradients.parameters(), model.parameters()):
            g.copy_(p.grad)
    expected = {f"grad.{name}": value.contiguous() for name, value in saved(gradients).items()}
    expected |= {"pixel_values": pixels, "labels": labels, "logits": out.logits.detach().contiguous(),
                 "loss": out.loss.detach().reshape(1)}
    save_file(expected, OUT / "expected.safetensors")
    print(*sorted(expected), sep="\n")


if __name__ == "__main__":
    main()
