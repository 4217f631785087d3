"""Makes tests/golden/lora_*: adapters of Hugging Face's PEFT in float64 on the tiny models of make_bert.py,
make_llama.py and make_vit.py, as PEFT saves them, with the logits, the loss, the gradient of every trained tensor, and the merged
weights, under the names of the models. That of the tied Llama also trains the embedding, which stays tied to the head.

Run:  python tests/golden/make/make_lora.py      (peft 0.21, transformers 5, torch 2.11; the output is committed)
"""
import json
import pathlib

import make_llama  # its norms and angles in float64
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForImageClassification, AutoModelForSequenceClassification

OUT = pathlib.Path(__file__).parents[1]
# What transformers' modules of a ViT are called, and its tensors in files of weights.
VIT = {"vit.layers": "vit.encoder.layer", "attention.q_proj": "attention.attention.query",
       "attention.v_proj": "attention.attention.value", "mlp.fc1": "intermediate.dense"}


def own_name(name):
    """A name inside PEFT's model as in a file of weights, without the prefix."""
    name = (name.removeprefix("base_model.model.").replace(".default", "").replace(".modules_to_save", "")
            .replace(".base_layer", ""))
    for module, in_file in VIT.items() if name.startswith("vit.") else ():
        name = name.replace(module, in_file)
    return name


def make(kind, attention, base, name, **config):
    torch.manual_seed(31)
    model = kind.from_pretrained(OUT / base, dtype=torch.float64, attn_implementation=attention)
    model = get_peft_model(model, LoraConfig(lora_dropout=0.0, **config)).double().train()
    with torch.no_grad():
        for p_name, p in model.named_parameters():
            if p.requires_grad:  # B too, which is zero at first
                p.copy_(torch.randn(p.shape, dtype=p.dtype) * 0.3)
    data = load_file(OUT / base / "expected.safetensors")
    inputs = {key: data[key] for key in ("input_ids", "attention_mask", "token_type_ids", "pixel_values", "labels") if key in data}
    labels = inputs.pop("labels")
    logits = model(**inputs).logits
    if logits.dim() == 3:  # causal: the loss of transformers is in float32
        logits_of, labels = logits[:, :-1].reshape(-1, logits.size(-1)), labels[:, 1:].reshape(-1)
    else:
        logits_of = logits
    loss = F.cross_entropy(logits_of, labels)
    loss.backward()
    expected = {f"grad.{own_name(key)}": p.grad for key, p in model.named_parameters() if p.requires_grad}
    expected |= {"logits": logits.detach(), "loss": loss.detach().reshape(1)}

    folder = OUT / name
    model.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)
    text = json.loads((folder / "adapter_config.json").read_text())
    text["base_model_name_or_path"] = base
    (folder / "adapter_config.json").write_text(json.dumps(text, indent=2, sort_keys=True) + "\n")
    adapted = {own_name(key).removesuffix(".lora_A.weight") for key in dict(model.named_parameters()) if "lora_A" in key}
    merged = {own_name(key): value for key, value in model.merge_and_unload().state_dict().items()}
    expected |= {f"merged.{layer}.weight": merged[f"{layer}.weight"] for layer in adapted}
    save_file({key: value.contiguous() for key, value in expected.items()}, folder / "expected.safetensors")
    print(name, len(adapted), "layers", loss.item())


def main():
    make(AutoModelForSequenceClassification, "eager", "bert_sequence", "lora_bert", r=2, lora_alpha=6, task_type="SEQ_CLS",
         target_modules=["query", "value", "dense"])
    make(AutoModelForCausalLM, "sdpa", "llama_untied", "lora_llama", r=3, lora_alpha=4, task_type="CAUSAL_LM",
         target_modules="all-linear")  # "eager" would have its softmax in float32
    make(AutoModelForCausalLM, "sdpa", "llama_tied", "lora_llama_tied", r=2, lora_alpha=4, task_type="CAUSAL_LM",
         target_modules=["q_proj"], modules_to_save=["embed_tokens"], ensure_weight_tying=True)
    make(AutoModelForImageClassification, "sdpa", "vit", "lora_vit", r=2, lora_alpha=6,
         target_modules=["q_proj", "v_proj", "fc1"], modules_to_save=["classifier"])


if __name__ == "__main__":
    main()
