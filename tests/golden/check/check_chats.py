"""Checks that fine-tuning on chats is TRL's and transformers': from the same weights, ten steps of `trireme train` on 1
and on 2 ranks have the losses and weights of SFTTrainer in float64, for messages, pairs of messages, pairs of texts, and
packed.

Run:  python tests/golden/check/check_chats.py build/release/bin/trireme
Needs torch, trl 1.16, transformers 5.24 and datasets. Exit status 0: equal within 1e-9; 1: not, and what differs is
printed. transformers computes the loss in float32 otherwise: Tensor.float() leaves float64 as it is here.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

GOLDEN = pathlib.Path(__file__).parents[1]
TEMPLATE = (GOLDEN / "chats" / "chat_template.jinja").read_text()
STEPS, RATE, END, BLOCK = 10, 0.005, "<|endoftext|>", 512

to_float = torch.Tensor.float
torch.Tensor.float = lambda self, *rest, **named: self if self.dtype == torch.float64 else to_float(self, *rest, **named)


class InFloat64(SFTTrainer):
    """SFTTrainer with the loss of transformers' model in place of TRL's kernel for float32."""
    losses = []

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        known = ("input_ids", "attention_mask", "position_ids", "labels")
        out = model(**{k: v for k, v in inputs.items() if k in known}, num_items_in_batch=num_items_in_batch)
        self.losses.append(out.loss.item())
        return (out.loss, out) if return_outputs else out.loss


def records(form):
    lines = [line.strip() for line in (GOLDEN.parents[1] / "docs" / "running.md").read_text().splitlines() if len(line) > 60]
    out = []
    for i in range(8):
        messages = [{"role": "user", "content": lines[3 * i]}, {"role": "assistant", "content": lines[3 * i + 1]}]
        if form == "texts":
            out.append({"prompt": lines[3 * i] + " ", "completion": lines[3 * i + 1]})
            continue
        if i % 2:
            messages += [{"role": "user", "content": lines[i][:40]}, {"role": "assistant", "content": lines[i + 30][:50]}]
        out.append({"prompt": messages[:-1], "completion": messages[-1:]} if form == "pairs" else {"messages": messages})
    return out


def train_with_trl(folder, form, packing):
    """Returns the losses and the weights after the last step; FOLDER gets the model before, and the data."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(GOLDEN / "tokenizers" / "qwen" / "tokenizer.json"),
                                        eos_token=END, pad_token=END, chat_template=TEMPLATE)
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=len(tokenizer), n_embd=32, n_layer=2, n_head=4, n_inner=48, resid_pdrop=0, embd_pdrop=0,
                        attn_pdrop=0, eos_token_id=tokenizer.eos_token_id, bos_token_id=tokenizer.eos_token_id)
    model = GPT2LMHeadModel(config).double()
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    rows = records(form)
    for split in ("train", "validation"):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = SFTConfig(output_dir=str(folder / "trl"), per_device_train_batch_size=len(rows), max_steps=STEPS,
                          learning_rate=RATE, lr_scheduler_type="constant", weight_decay=0, max_grad_norm=0,
                          optim="adamw_torch", report_to=[], assistant_only_loss=form == "messages",
                          max_length=BLOCK if packing else 1024, packing=packing, use_cpu=True, bf16=False,
                          save_strategy="no", gradient_checkpointing=False, disable_tqdm=True, loss_type="nll")
    InFloat64.losses = []
    InFloat64(model=model, args=arguments, processing_class=tokenizer, train_dataset=Dataset.from_list(rows)).train()
    return InFloat64.losses, {name: value.detach().clone() for name, value in model.state_dict().items()}


def train_with_trireme(trireme, folder, packing, ranks):
    run = folder / f"run_{ranks}"
    packed = f"max_tokens = {BLOCK}\npacking = true" if packing else "max_tokens = 1024"
    (folder / "run.toml").write_text(f"""
[run]
dir = "{run}"
device = "cpu"
[model]
name = "gpt2"
weights = "{folder}/model"
[data]
name = "chat"
path = "{folder}"
{packed}
[train]
epochs = {STEPS}
global_batch = 8
precision = "fp64"
max_norm = 0.0
[optimizer]
lr = {RATE}
weight_decay = 0.0
[schedule]
name = "constant"
""")
    subprocess.run([trireme, "train", folder / "run.toml", "--ranks", str(ranks)], check=True, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "step"], load_file(run / "model" / "model.safetensors")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("trireme", type=pathlib.Path)
    trireme = parser.parse_args().trireme.resolve()
    all_equal = True
    for form, packing in (("messages", False), ("messages", True), ("pairs", False), ("texts", False)):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            losses, weights = train_with_trl(folder, form, packing)
            for ranks in (1, 2):
                own_losses, own = train_with_trireme(trireme, folder, packing, ranks)
                off = max(abs(a - b) / b for a, b in zip(own_losses, losses, strict=True))
                far = max(((own[k] - weights[k]).abs().max() / weights[k].abs().max()).item() for k in own)
                all_equal = all_equal and off <= 1e-9 and far <= 1e-9
                print(f"{form}{' packed' if packing else ''}, {ranks} ranks: losses differ by {off:.1e}, weights by {far:.1e}")
    return 0 if all_equal else 1


if __name__ == "__main__":
    sys.exit(main())
