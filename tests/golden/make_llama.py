"""Makes tests/golden/llama_*: tiny Llamas of Hugging Face transformers in float64, with an untied and a tied head, with
their inputs (padded sentences), logits, loss and the gradient of every parameter, under the names on disk.

transformers computes norms, angles and the loss in float32 whatever the model's dtype; here they are in float64.

Run:  python tests/golden/make_llama.py      (transformers 5, torch 2.11; the output is committed)
"""
import copy
import pathlib
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama

OUT = pathlib.Path(__file__).parent
LENGTHS, LONGEST, VOCABULARY = (7, 3, 5), 7, 13


def norm(self, hidden):
    return self.weight * hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


def angles(self, x, position_ids):
    size = self.config.head_dim
    frequencies = 1 / THETA ** (torch.arange(0, size, 2, dtype=torch.float64) / size)
    half = position_ids[..., None].double() * frequencies
    both = torch.cat((half, half), dim=-1)
    return both.cos(), both.sin()


THETA = 500.0
modeling_llama.LlamaRMSNorm.forward = norm
modeling_llama.LlamaRotaryEmbedding.forward = angles


def saved(model):
    """The model's tensors under their on-disk names."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(f"{folder}/model.safetensors")


def make(name, tied):
    torch.manual_seed(20)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=20, max_position_embeddings=9, tie_word_embeddings=tied, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": THETA}, pad_token_id=None, bos_token_id=1, eos_token_id=2)
    config._attn_implementation = "sdpa"  # "eager" has its softmax in float32
    model = LlamaForCausalLM(config).double().train()
    with torch.no_grad():  # no zeros and ones: each parameter must matter
        for p_name, p in model.named_parameters():
            p.copy_(torch.randn(p.shape, dtype=p.dtype) * (0.3 if p.dim() > 1 else 0.1))
            if "norm" in p_name:
                p.add_(1.0)
    ids = torch.randint(1, VOCABULARY, (len(LENGTHS), LONGEST))
    mask = torch.zeros_like(ids)
    for row, length in enumerate(LENGTHS):
        mask[row, :length] = 1
    inputs = {"input_ids": ids, "attention_mask": mask}
    labels = torch.where(mask == 1, ids, -100)
    logits = model(**inputs).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    loss.backward()

    folder = OUT / name
    folder.mkdir(exist_ok=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    gradients = copy.deepcopy(model)
    with torch.no_grad():
        for g, p in zip(gradients.parameters(), model.parameters()):
            g.copy_(p.grad)
    expected = {f"grad.{key}": value.contiguous() for key, value in saved(gradients).items()}
    expected |= inputs | {"labels": labels, "logits": logits.detach().contiguous(),
                          "loss": loss.detach().reshape(1)}
    save_file(expected, folder / "expected.safetensors")
    print(name, len(expected), loss.item())


def main():
    make("llama_untied", False)
    make("llama_tied", True)


if __name__ == "__main__":
    main()
