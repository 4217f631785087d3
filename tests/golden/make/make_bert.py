"""Makes tests/golden/bert_*: tiny BERTs of Hugging Face transformers in float64, one for each head, with their inputs
(padded sentences, two token types), logits, loss and the gradient of every parameter, under the names on disk.

Run:  python tests/golden/make/make_bert.py      (transformers 5, torch 2.11; the output is committed)
"""
import copy
import pathlib
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, BertForTokenClassification

OUT = pathlib.Path(__file__).parents[1]
LENGTHS, LONGEST, VOCABULARY, LABELS = (7, 3, 5), 7, 13, 4


def saved(model):
    """The model's tensors under their on-disk names."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(f"{folder}/model.safetensors")


def make(kind, name, labels):
    torch.manual_seed(20)
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20,
        max_position_embeddings=9, num_labels=LABELS, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config._attn_implementation = "eager"
    model = kind(config).double().train()
    with torch.no_grad():  # no zeros and ones: each parameter must matter
        for p_name, p in model.named_parameters():
            p.copy_(torch.randn(p.shape, dtype=p.dtype) * (0.3 if p.dim() > 1 else 0.1))
            if "LayerNorm" in p_name and p_name.endswith("weight"):
                p.add_(1.0)
    ids = torch.randint(1, VOCABULARY, (len(LENGTHS), LONGEST))
    mask = torch.zeros_like(ids)
    for row, length in enumerate(LENGTHS):
        mask[row, :length] = 1
    ids = ids * mask  # the id of padding is 0
    inputs = {"input_ids": ids, "attention_mask": mask,
              "token_type_ids": (torch.arange(LONGEST) >= 2).long().expand_as(ids).contiguous()}
    if labels.dim() == 2:
        labels = torch.where(mask == 1, labels, -100)
    out = model(**inputs, labels=labels)
    out.loss.backward()

    folder = OUT / name
    folder.mkdir(exist_ok=True)
    model.save_pretrained(folder)
    gradients = copy.deepcopy(model)
    with torch.no_grad():
        for g, p in zip(gradients.parameters(), model.parameters()):
            g.copy_(p.grad)
    expected = {f"grad.{key}": value.contiguous() for key, value in saved(gradients).items()}
    expected |= inputs | {"labels": labels, "logits": out.logits.detach().contiguous(),
                          "loss": out.loss.detach().reshape(1)}
    save_file(expected, folder / "expected.safetensors")
    print(name, len(expected), out.loss.item())


def main():
    torch.manual_seed(3)
    tokens = torch.randint(0, VOCABULARY, (len(LENGTHS), LONGEST))
    tokens[:, ::3] = -100
    make(BertForMaskedLM, "bert_masked_lm", tokens)
    make(BertForSequenceClassification, "bert_sequence", torch.tensor([3, 0, 2]))
    make(BertForTokenClassification, "bert_token", torch.randint(0, LABELS, (len(LENGTHS), LONGEST)))


if __name__ == "__main__":
    main()
