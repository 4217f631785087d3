"""Makes tests/golden/vit: a tiny ViTForImageClassification of Hugging Face transformers in float64, with its inputs,
logits, loss and the gradient of every parameter. Names are those of the file on disk.

Run:  python tests/golden/make/make_vit.py      (transformers 5, torch 2.11; the output is committed)
"""
import torch
from transformers import ViTConfig, ViTForImageClassification

from common import fill, save

BATCH, LABELS = 3, 5


def main():
    torch.manual_seed(20)
    config = ViTConfig(
        image_size=16, patch_size=4, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=48,
        num_labels=LABELS, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, layer_norm_eps=1e-12)
    model = ViTForImageClassification(config).double().train()
    fill(model, 0.2, lambda name: "norm" in name and name.endswith("weight"))
    pixels = torch.randn(BATCH, 3, 16, 16, dtype=torch.float64)
    labels = torch.tensor([4, 0, 2])
    out = model(pixel_values=pixels, labels=labels)
    out.loss.backward()
    save(model, "vit", {"pixel_values": pixels, "labels": labels}, out.logits, out.loss)


if __name__ == "__main__":
    main()
