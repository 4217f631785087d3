"""Makes tests/golden/gpt2: a tiny GPT-2 of Hugging Face transformers in float64 with its inputs (padded sentences, the
positions of some tokens not in order), logits, loss and the gradient of every parameter, under the names and in the
layout on disk: weights of attention and MLP are [in, out].

Run:  python tests/golden/make/make_gpt2.py      (transformers 5, torch 2.11; the output is committed)
"""
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from common import LENGTHS, LONGEST, VOCABULARY, causal_loss, fill, padding_mask, save


def main():
    torch.manual_seed(21)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=4, n_inner=20, n_positions=9, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, layer_norm_epsilon=1e-4, bos_token_id=1, eos_token_id=2)
    config._attn_implementation = "sdpa"
    model = GPT2LMHeadModel(config).double().train()
    fill(model, 0.3, lambda name: ".ln_" in name and name.endswith("weight"))
    ids = torch.randint(0, VOCABULARY, (len(LENGTHS), LONGEST))
    mask = padding_mask()
    positions = torch.arange(LONGEST).repeat(len(LENGTHS), 1)
    positions[2] += 2
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    labels = torch.where(mask == 1, ids, -100)
    logits = model(**inputs).logits
    loss = causal_loss(logits, labels)
    loss.backward()
    save(model, "gpt2", inputs | {"labels": labels}, logits, loss)


if __name__ == "__main__":
    main()
