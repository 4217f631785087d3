"""Writes optim.json: steps of torch.optim's optimizers and curves of its schedulers, for tests/unit/optim.

Run with a Python that has torch 2.11:  python tests/golden/make/make_optim.py
Every optimizer takes the plain per-tensor path (foreach=False, fused=False), the definition of its numbers. Numbers
are printed with 17 digits, so that a float64 survives the file.
"""
import json
import math
import os
import warnings

import torch

warnings.filterwarnings("ignore")
torch.set_num_threads(1)

STEPS = 6
SHAPES = [[3, 4], [19]]
LRS = [1.1e-2 * (1 + 0.3 * math.sin(s)) for s in range(STEPS)]
NO_GRAD = [(2, 1)]  # (step, tensor): no gradient there, so nothing of that tensor changes

OPTIMIZERS = {
    "adamw": (torch.optim.AdamW, dict(betas=(0.87, 0.993), eps=1e-8, weight_decay=0.05)),
    "adamw_plain": (torch.optim.AdamW, dict(betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0)),
    "adam_l2": (torch.optim.Adam, dict(betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1)),
    "sgd": (torch.optim.SGD, dict(weight_decay=0.01)),
    "sgd_momentum": (torch.optim.SGD, dict(momentum=0.9)),
    "sgd_nesterov": (torch.optim.SGD, dict(momentum=0.8, nesterov=True, weight_decay=0.1)),
    "sgd_dampening": (torch.optim.SGD, dict(momentum=0.9, dampening=0.3, weight_decay=0.02)),
}


def flat(tensor):
    return tensor.detach().double().reshape(-1).tolist()


def run(cls, options, dtype, start, grads):
    tensors = [t.to(dtype).clone().requires_grad_() for t in start]
    optimizer = cls(tensors, lr=LRS[0], foreach=False, fused=False, **options)
    values = []
    for s in range(STEPS):
        optimizer.param_groups[0]["lr"] = LRS[s]
        for i, t in enumerate(tensors):
            t.grad = None if (s, i) in NO_GRAD else grads[s][i].to(dtype)
        optimizer.step()
        values.append([flat(t) for t in tensors])
    state = [{k: flat(torch.as_tensor(v)) for k, v in optimizer.state[t].items() if v is not None} for t in tensors]
    return {"values": values, "state": state}


def curve(make, steps, lr):
    parameter = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=lr)
    scheduler = make(optimizer)
    out = []
    for _ in range(steps):
        out.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return out


def schedules():
    lr, T = 3e-3, 40
    S = torch.optim.lr_scheduler
    warm, cosine = int(0.1 * 99), lambda s, w, t: 0.5 * (1 + math.cos(math.pi * (s - w) / (t - w)))
    rows = {
        "constant": (dict(name="constant"), lambda o: S.ConstantLR(o, factor=1.0), T),
        "step": (dict(name="step", step_size=7, gamma=0.3), lambda o: S.StepLR(o, 7, 0.3), T),
        "multi_step": (dict(name="multi_step", milestones=[5, 9, 30], gamma=0.1),
                       lambda o: S.MultiStepLR(o, [5, 9, 30], 0.1), T),
        "polynomial": (dict(name="polynomial", power=0.9), lambda o: S.PolynomialLR(o, T, 0.9), T),
        "polynomial_2": (dict(name="polynomial", power=2.0), lambda o: S.PolynomialLR(o, T, 2.0), T),
        "one_cycle": (dict(name="one_cycle"), lambda o: S.OneCycleLR(o, lr, T), T),
        "one_cycle_short": (dict(name="one_cycle", pct_start=0.25, div_factor=10.0, final_div_factor=100.0),
                            lambda o: S.OneCycleLR(o, lr, 7, pct_start=0.25, div_factor=10.0, final_div_factor=100.0), 7),
        "linear": (dict(name="linear", min_lr_factor=0.1), lambda o: S.LinearLR(o, 1.0, 0.1, T), T),
        "cosine": (dict(name="cosine", min_lr_factor=0.05), lambda o: S.CosineAnnealingLR(o, T, eta_min=0.05 * lr), T),
        "cosine_warm": (dict(name="cosine", warmup_ratio=0.1),
                        lambda o: S.LambdaLR(o, lambda s: (s + 1) / warm if s < warm else cosine(s, warm, 99)), 99),
    }
    return [dict(label=label, options=options, base_lr=lr, total=steps, lr=curve(make, steps, lr))
            for label, (options, make, steps) in rows.items()]


def main():
    generator = torch.Generator().manual_seed(7)
    draw = lambda shape: torch.randn(shape, generator=generator, dtype=torch.float32).double()
    start = [draw(shape) for shape in SHAPES]
    grads = [[draw(shape) for shape in SHAPES] for _ in range(STEPS)]
    out = {
        "torch": torch.__version__.split("+")[0],
        "shapes": SHAPES,
        "lr": LRS,
        "no_grad": NO_GRAD,
        "start": [flat(t) for t in start],
        "grads": [[flat(t) for t in step] for step in grads],
        "optimizers": {},
        "schedules": schedules(),
    }
    for name, (cls, options) in OPTIMIZERS.items():
        out["optimizers"][name] = {
            "options": options,
            "float64": run(cls, options, torch.float64, start, grads),
            "float32": run(cls, options, torch.float32, start, grads),
        }
    text = json.dumps(out, separators=(",", ":"))
    assert len(text) < 200_000, len(text)
    path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "optim.json")
    with open(path, "w") as file:
        file.write(text + "\n")
    print(path, len(text), "bytes")


main()
