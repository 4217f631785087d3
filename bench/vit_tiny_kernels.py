#!/usr/bin/env python3
"""How fast one encoder block of ViT-tiny could be if nothing ran but its kernels.

Runs LibTorch's kernels of one block (forward and backward, 8 images of 224 px, fp32, one thread) one after the other on
operands that come from memory, without autograd and without allocation where the kernel allows, and prints the rate that
their sum gives as a part of the rate of a large matrix product. Needs a Python with torch; nothing of this project.
"""

import json
import statistics
import time

import torch

aten = torch.ops.aten
TOKENS, WIDTH, HIDDEN, HEADS, IMAGES = 8 * 197, 192, 768, 3, 8
COPIES = 24  # so many that a kernel's operands have left the caches when it comes to them again


def milliseconds(operands, kernel):
    sets = [operands() for _ in range(COPIES)]
    rounds = []
    for _ in range(6):
        start = time.perf_counter()
        for one in sets:
            kernel(*one)
        rounds.append((time.perf_counter() - start) / COPIES * 1e3)
    return statistics.median(rounds[1:])


def product(m, k, n):
    return milliseconds(lambda: (torch.randn(m, k), torch.randn(k, n), torch.empty(m, n)),
                        lambda a, b, c: torch.mm(a, b, out=c))


def rows(*widths):
    return lambda: tuple(torch.randn(TOKENS, width) for width in widths)


def heads():
    return tuple(torch.randn(IMAGES, TOKENS // IMAGES, HEADS, WIDTH // HEADS).transpose(1, 2) for _ in range(3))


def attention_state():
    query, key, value = heads()
    out, logsumexp = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value)[:2]
    return torch.randn_like(out), query, key, value, out, logsumexp


def norm_state():
    x = torch.randn(TOKENS, WIDTH)
    _, mean, rstd = torch.native_layer_norm(x, [WIDTH], GAIN, GAIN, 1e-6)
    return torch.randn(TOKENS, WIDTH), x, mean, rstd


def large_rate():
    a, b, c = (torch.randn(2048, 2048) for _ in range(3))
    times = []
    for _ in range(10):
        start = time.perf_counter()
        torch.mm(a, b, out=c)
        times.append(time.perf_counter() - start)
    return 2 * 2048**3 / statistics.median(times[1:])


torch.set_num_threads(1)
GAIN = torch.ones(WIDTH)
products = (8 * product(TOKENS, WIDTH, WIDTH) + 4 * product(WIDTH, TOKENS, WIDTH)
            + 2 * product(TOKENS, WIDTH, HIDDEN) + 2 * product(TOKENS, HIDDEN, WIDTH)
            + product(WIDTH, TOKENS, HIDDEN) + product(HIDDEN, TOKENS, WIDTH))
others = {
    "attention": milliseconds(heads, aten._scaled_dot_product_flash_attention_for_cpu),
    "attention, backward": milliseconds(
        attention_state, lambda *a: aten._scaled_dot_product_flash_attention_for_cpu_backward(*a, 0.0, False)),
    "GELU": milliseconds(rows(HIDDEN, HIDDEN), lambda a, b: aten.gelu.out(a, out=b)),
    "GELU, backward": milliseconds(rows(HIDDEN, HIDDEN, HIDDEN),
                                   lambda a, b, c: aten.gelu_backward.grad_input(a, b, grad_input=c)),
    "layer norms": 2 * milliseconds(rows(WIDTH), lambda a: torch.native_layer_norm(a, [WIDTH], GAIN, GAIN, 1e-6)),
    "layer norms, backward": 2 * milliseconds(
        norm_state, lambda g, x, m, r: aten.native_layer_norm_backward(g, x, [WIDTH], m, r, GAIN, GAIN, [True] * 3)),
    "residual sums": 4 * milliseconds(rows(WIDTH, WIDTH, WIDTH), lambda a, b, c: torch.add(a, b, out=c)),
    "gradients of biases": 5 * milliseconds(rows(WIDTH), lambda a: a.sum(0))
    + milliseconds(rows(HIDDEN), lambda a: a.sum(0)),
}
linear_flops = 3 * 2 * TOKENS * (4 * WIDTH * WIDTH + 2 * WIDTH * HIDDEN)
attention_flops = 3 * 2 * 2 * TOKENS * (TOKENS // IMAGES) * WIDTH
rate = large_rate()
print(json.dumps({
    "products_ms": round(products, 2),
    "others_ms": {name: round(value, 2) for name, value in others.items()},
    "products_rate": round(linear_flops / products * 1e3 / rate, 3),
    "block_rate": round((linear_flops + attention_flops) / (products + sum(others.values())) * 1e3 / rate, 3),
    "torch": torch.__version__,
}, indent=1))
