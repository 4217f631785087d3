"""What the scripts that make the tiny models of Hugging Face transformers have in common."""
import copy
import pathlib
import tempfile

import torch
from safetensors.torch import load_file, save_file

OUT = pathlib.Path(__file__).parents[1]
LENGTHS, LONGEST, VOCABULARY = (7, 3, 5), 7, 13  # of the padded sentences that models of text get


def fill(model, deviation, is_scale):
    """Random weights without zeros and ones, because each parameter must matter; `is_scale`: of which names are
    around 1."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.randn(p.shape, dtype=p.dtype) * (deviation if p.dim() > 1 else 0.1))
            if is_scale(name):
                p.add_(1.0)


def padding_mask():
    """1 for each token of a sentence, 0 for padding."""
    mask = torch.zeros((len(LENGTHS), LONGEST), dtype=torch.long)
    for row, length in enumerate(LENGTHS):
        mask[row, :length] = 1
    return mask


def causal_loss(logits, labels):
    """As transformers has it, but in float64."""
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def saved(model):
    """The model's tensors under their on-disk names."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(f"{folder}/model.safetensors")


def save(model, name, inputs, logits, loss):
    """Makes tests/golden/NAME: the model, its inputs, its results, and the gradients of loss.backward(). They are saved
    as if they were weights, so that transformers' own renaming applies."""
    folder = OUT / name
    folder.mkdir(exist_ok=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    gradients = copy.deepcopy(model)
    with torch.no_grad():
        for g, p in zip(gradients.parameters(), model.parameters()):
            g.copy_(p.grad)
    expected = {f"grad.{key}": value.contiguous() for key, value in saved(gradients).items()}
    expected |= inputs | {"logits": logits.detach().contiguous(), "loss": loss.detach().reshape(1)}
    save_file(expected, folder / "expected.safetensors")
    print(name, len(expected), loss.item())
