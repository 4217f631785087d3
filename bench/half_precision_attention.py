#!/usr/bin/env python3
"""What attention in half precision takes on a CPU: PyTorch's in bf16, and in fp32 with casts as nn::fused_attention does.

    bench/half_precision_attention.py [--rounds N]

Prints milliseconds of one thread, forward and backward, in turn: the median. Needs PyTorch (bench/requirements.txt).
"""
import argparse
import statistics
import time

import torch
from torch.nn.functional import scaled_dot_product_attention

SHAPES = [(8, 3, 16, 64), (8, 3, 37, 64), (8, 3, 64, 64), (8, 3, 100, 64), (8, 3, 128, 64), (8, 3, 197, 64), (1, 3, 1024, 64)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("samples heads tokens features     bf16     fp32  ratio")
    for batch, heads, tokens, features in SHAPES:
        qkv = [torch.randn(batch, heads, tokens, features, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
        gradient = torch.randn_like(qkv[0])
        ways = {"bf16": lambda: scaled_dot_product_attention(*qkv),
                "fp32": lambda: scaled_dot_product_attention(*(x.float() for x in qkv)).bfloat16()}
        ms = {way: [] for way in ways}
        for _ in range(given.rounds + 1):
            for way, attend in ways.items():
                begun = time.perf_counter()
                attend().backward(gradient)
                ms[way].append(1e3 * (time.perf_counter() - begun))
        bf16, fp32 = (statistics.median(ms[way][1:]) for way in ways)
        print(f"{batch:7} {heads:5} {tokens:6} {features:8} {bf16:8.2f} {fp32:8.2f} {fp32 / bf16:6.2f}", flush=True)


if __name__ == "__main__":
    main()
