"""Makes tests/golden/bert_*: tiny BERTs of Hugging Face transformers in float64, one for each head, with their inputs
(padded sentences, two token types), logits, loss and the gradient of every parameter, under the names on disk.

Run:  python tests/golden/make/make_bert.py      (transformers 5, torch 2.11; the output is committed)
"""
import torch
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, BertForTokenClassification

from common import LENGTHS, LONGEST, VOCABULARY, fill, padding_mask, save

LABELS = 4


def make(kind, name, labels):
    torch.manual_seed(20)
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20,
        max_position_embeddings=9, num_labels=LABELS, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config._attn_implementation = "eager"
    model = kind(config).double().train()
    fill(model, 0.3, lambda p_name: "LayerNorm" in p_name and p_name.endswith("weight"))
    ids = torch.randint(1, VOCABULARY, (len(LENGTHS), LONGEST))
    mask = padding_mask()
    ids = ids * mask  # the id of padding is 0
    inputs = {"input_ids": ids, "attention_mask": mask,
              "token_type_ids": (torch.arange(LONGEST) >= 2).long().expand_as(ids).contiguous()}
    if labels.dim() == 2:
        labels = torch.where(mask == 1, labels, -100)
    out = model(**inputs, labels=labels)
    out.loss.backward()
    save(model, name, inputs | {"labels": labels}, out.logits, out.loss)


def main():
    torch.manual_seed(3)
    tokens = torch.randint(0, VOCABULARY, (len(LENGTHS), LONGEST))
    tokens[:, ::3] = -100
    make(BertForMaskedLM, "bert_masked_lm", tokens)
    make(BertForSequenceClassification, "bert_sequence", torch.tensor([3, 0, 2]))
    make(BertForTokenClassification, "bert_token", torch.randint(0, LABELS, (len(LENGTHS), LONGEST)))


if __name__ == "__main__":
    main()
