#!/usr/bin/env python3
"""Checks the machine code of our CUDA kernels. Whether it is good depends on the compiler, and no result shows it.

    scripts/check_kernels.py LIBRARY CUOBJDUMP      exit code 1 and one line a fault; 77 without the tool cuobjdump

A kernel of packs (core/nn/cuda/packs.cuh) stores 16 bytes at a time. No kernel keeps registers in local memory.
"""
import re
import subprocess
import sys
from pathlib import Path

NARROW = 2  # stores that are not packs: the mean and the reciprocal deviation of a row
PACK = re.compile(r"I(?:f|d|6__half|13__nv_bfloat16)Li(\d+)E")  # <dtype, elements of a pack, ...> in a kernel's name


def check(sass):
    """The number of kernels of packs in the output of `cuobjdump -sass`, and the faults of all kernels."""
    packed, faults = 0, []
    for code in sass.split("arch = ")[1:]:
        architecture, *functions = code.split("Function : ")
        for part in functions:
            name = f"{part.split()[0]} ({architecture.split()[0]})"
            # A search for a word reads much slower than one for its letters, which are seldom there.
            if ("LDL" in part or "STL" in part) and re.search(r"\b(LDL|STL)\b", part):
                faults.append(f"{name}: registers are in local memory")
            pack = PACK.search(name)
            if pack and int(pack[1]) > 1:
                packed += 1
                stores = re.findall(r"\bSTG\.\S+", part)
                narrow = [store for store in stores if ".128" not in store]
                if len(narrow) > NARROW or len(narrow) == len(stores):
                    faults.append(f"{name}: {len(narrow)} of {len(stores)} stores are of less than 16 bytes")
    return packed, faults


def main(library, cuobjdump):
    if not Path(cuobjdump).is_file():
        print("nothing to check here: no cuobjdump, which the CUDA toolkit and the triton package have")
        return 77
    packed, faults = check(subprocess.run([cuobjdump, "-sass", library], check=True, capture_output=True, text=True).stdout)
    for fault in faults:
        print(fault)
    print(f"{packed} kernels of packs, {len(faults)} faults")
    return 1 if faults or packed == 0 else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
