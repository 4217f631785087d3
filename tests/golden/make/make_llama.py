"""Makes tests/golden/llama_* and qwen3: tiny Llamas of Hugging Face transformers in float64, with an untied and a tied
head, and a Qwen3 with scaled rotary positions, with their inputs (padded sentences), logits, loss and the gradient of
every parameter, under the names on disk. And tests/golden/rope.json and rope.safetensors: what config.json may say of
rotary positions, how transformers writes it, and the cosines and sines of each.

transformers computes norms, angles and the loss in float32 whatever the model's dtype; here they are in float64.

Run:  python tests/golden/make/make_llama.py      (transformers 5, torch 2.11; the output is committed)
"""
import copy
import json

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM, modeling_rope_utils
from transformers.models.llama import modeling_llama
from transformers.models.qwen3 import modeling_qwen3

from common import LENGTHS, LONGEST, OUT, VOCABULARY, causal_loss, fill, padding_mask, save


def norm(self, hidden):
    return self.weight * hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


class Float64:
    """torch, but float is float64."""

    float = float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@modeling_rope_utils.dynamic_rope_update
def angles(self, x, position_ids):
    half = position_ids[..., None].double() * self.inv_freq
    both = torch.cat((half, half), dim=-1)
    return both.cos() * self.attention_scaling, both.sin() * self.attention_scaling


THETA = 500.0
for module in (modeling_rope_utils, modeling_llama, modeling_qwen3):
    module.torch = Float64()
modeling_llama.LlamaRMSNorm.forward = modeling_qwen3.Qwen3RMSNorm.forward = norm
modeling_llama.LlamaRotaryEmbedding.forward = modeling_qwen3.Qwen3RotaryEmbedding.forward = angles


SIZES = dict(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             intermediate_size=20, max_position_embeddings=9, rms_norm_eps=1e-5, pad_token_id=None, bos_token_id=1,
             eos_token_id=2)
PLAIN = {"rope_type": "default", "rope_theta": THETA}


def make(name, config, model_class):
    torch.manual_seed(20)
    config._attn_implementation = "sdpa"  # "eager" has its softmax in float32
    model = model_class(config).double().train()
    fill(model, 0.3, lambda p_name: "norm" in p_name)
    ids = torch.randint(1, VOCABULARY, (len(LENGTHS), LONGEST))
    mask = padding_mask()
    inputs = {"input_ids": ids, "attention_mask": mask}
    labels = torch.where(mask == 1, ids, -100)
    logits = model(**inputs).logits
    loss = causal_loss(logits, labels)
    loss.backward()
    save(model, name, inputs | {"labels": labels}, logits, loss)


ROPES = {
    "default": {"rope_theta": 500.0},
    "linear": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "dynamic_short": {"rope_scaling": {"rope_type": "dynamic", "factor": 3.0}, "max_position_embeddings": 24},
    "dynamic_long": {"rope_parameters": {"rope_type": "dynamic", "factor": 3.0, "rope_theta": 500.0},
                     "max_position_embeddings": 10},
    "llama3": {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                "original_max_position_embeddings": 64}, "max_position_embeddings": 512,
               "rope_theta": 500.0},
    "llama3_without_original": {"rope_parameters": {"rope_type": "llama3", "factor": 2, "low_freq_factor": 0.5,
                                                    "high_freq_factor": 3.0, "rope_theta": 200.0}},
    "yarn": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
                                 "rope_theta": 500.0}, "max_position_embeddings": 128},
    "yarn_exact": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
                                    "beta_fast": 4, "beta_slow": 0.5, "attention_factor": 0.75, "truncate": False},
                   "rope_theta": 500.0, "max_position_embeddings": 128},
    "yarn_mscale": {"rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 0.7,
                                     "original_max_position_embeddings": 16}, "max_position_embeddings": 640},
}


def make_ropes():
    torch.set_default_dtype(torch.float64)  # of "dynamic", whose base is computed from a number of tokens
    cases, expected = {}, {}
    for name, values in ROPES.items():
        config = LlamaConfig(hidden_size=64, num_attention_heads=4, vocab_size=VOCABULARY, pad_token_id=None,
                             **({"max_position_embeddings": 64} | copy.deepcopy(values)))
        rotary = modeling_llama.LlamaRotaryEmbedding(config)
        cos, sin = rotary(torch.zeros(1, dtype=torch.float64), torch.arange(24)[None])
        cases[name] = {"config": {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4,
                                  "vocab_size": VOCABULARY, "max_position_embeddings": 64} | values,
                       "written": config.to_dict()["rope_parameters"]}
        expected |= {f"{name}.cos": cos[0].contiguous(), f"{name}.sin": sin[0].contiguous()}
    (OUT / "rope.json").write_text(json.dumps(cases, indent=1, sort_keys=True) + "\n")
    save_file(expected, OUT / "rope.safetensors")


def main():
    for tied in (False, True):
        make(f"llama_{'tied' if tied else 'untied'}",
             LlamaConfig(**SIZES, tie_word_embeddings=tied, rope_parameters=PLAIN), LlamaForCausalLM)
    yarn = {"rope_type": "yarn", "rope_theta": THETA, "factor": 2.0, "original_max_position_embeddings": 4}
    make("qwen3", Qwen3Config(**SIZES, head_dim=6, tie_word_embeddings=True, rope_parameters=yarn), Qwen3ForCausalLM)
    make_ropes()


if __name__ == "__main__":
    main()
