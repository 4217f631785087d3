"""Makes tests/golden/resnet_*: narrow ResNets of torchvision in float64, one with basic blocks and one with
bottlenecks, with images, labels, logits, loss, the gradient of every parameter, and the running statistics after one
training step.

Run:  python tests/golden/make/make_resnet.py      (torchvision 0.26, torch 2.11; the output is committed)
"""
import pathlib

import torch
from safetensors.torch import save_file
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

OUT = pathlib.Path(__file__).parents[1]
WIDTH, CLASSES, SAMPLES, HEIGHT, SIDE = 2, 3, 3, 36, 44


class Narrow(ResNet):
    """torchvision's network with WIDTH / 64 of its channels."""

    @property
    def inplanes(self):
        return self._inplanes

    @inplanes.setter
    def inplanes(self, value):
        self._inplanes = value if hasattr(self, "_inplanes") else WIDTH

    def _make_layer(self, block, planes, blocks, stride=1, dilate=False):
        return super()._make_layer(block, planes * WIDTH // 64, blocks, stride, dilate)


def make(name, depth, block, blocks):
    torch.manual_seed(20)
    model = Narrow(block, blocks)
    model.fc = torch.nn.Linear(8 * WIDTH * block.expansion, CLASSES)
    model = model.double().train()
    with torch.no_grad():  # no zeros and ones: each parameter must matter
        for p_name, p in model.named_parameters():
            p.copy_(torch.randn(p.shape, dtype=p.dtype) * (0.4 if p.dim() > 1 else 0.2))
            if p_name.endswith("weight") and p.dim() == 1:
                p.add_(1.0)
        for b_name, b in model.named_buffers():
            if b_name.endswith("running_var"):
                b.copy_(torch.rand(b.shape, dtype=b.dtype) + 0.5)
            elif b_name.endswith("running_mean"):
                b.copy_(torch.randn(b.shape, dtype=b.dtype))
    pixels = torch.randn(SAMPLES, 3, HEIGHT, SIDE, dtype=torch.float64)
    labels = torch.tensor([2, 0, 1])
    folder = OUT / name
    folder.mkdir(exist_ok=True)
    save_file({key: value.clone() for key, value in model.state_dict().items()}, folder / "model.safetensors")
    model.eval()
    in_evaluation = model(pixels).detach()
    model.train()
    logits = model(pixels)
    loss = torch.nn.functional.cross_entropy(logits, labels)
    loss.backward()
    expected = {f"grad.{key}": p.grad.contiguous() for key, p in model.named_parameters()}
    expected |= {f"after.{key}": b.clone() for key, b in model.named_buffers()}
    expected |= {"pixel_values": pixels, "labels": labels, "logits": logits.detach(), "loss": loss.detach().reshape(1),
                 "evaluation": in_evaluation}
    save_file(expected, folder / "expected.safetensors")
    print(name, depth, len(expected), loss.item())


if __name__ == "__main__":
    make("resnet_18", 18, BasicBlock, [2, 2, 2, 2])
    make("resnet_50", 50, Bottleneck, [3, 4, 6, 3])
