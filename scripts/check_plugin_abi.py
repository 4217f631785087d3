#!/usr/bin/env python3
"""Checks that the plugin ABI number was raised when a header that plugins see has changed. Python's standard library
alone.

    scripts/check_plugin_abi.py [ROOT]       exit code 1 and one line when the number and the headers do not fit
    scripts/check_plugin_abi.py --record     after raising TRIREME_ABI: records the number with the headers' hash

A plugin is compiled against these headers and loaded into another build of the engine: a changed class layout or
virtual table would crash it, so the loader compares the numbers (core/booster/versions.h). Comments and white space do
not count.
"""
import hashlib
import re
import sys
from pathlib import Path

ENTRIES = ["core/booster/plugin_entry.h", "core/booster/plugin_wrapper.h", "core/booster/local_model.h",
           "core/nn/layers/attention.h", "core/nn/layers/batch_norm.h", "core/nn/block.h", "core/nn/layers/embedding.h",
           "core/nn/layers/gated_linear.h", "core/nn/layers/linear.h", "core/nn/layers/rms_norm.h", "core/nn/layers/tokens.h",
           "core/optim/slotwise.h", "core/setup/extension.h",
           "core/train/callback.h", "shardformer/sequence/slices.h", "shardformer/tensor/collectives.h",
           "shardformer/tensor/features.h"]
VERSIONS = "core/booster/versions.h"
RECORD = "core/booster/plugin_abi.txt"
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)
NUMBER = re.compile(r'^#define TRIREME_ABI "(\d+)"', re.M)


def headers(root):
    """The headers that the entries include, directly or not, without those that hold version numbers."""
    found, waiting = set(), list(ENTRIES)
    while waiting:
        name = waiting.pop()
        if name in found or not (root / name).is_file():
            continue
        found.add(name)
        waiting += INCLUDE.findall((root / name).read_text())
    return sorted(found - {VERSIONS, "core/base/version.h"})


def substance(text):
    """The text without comments and white space."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r"//[^\n]*", "", text)
    return re.sub(r"\s+", "", text)


def state(root):
    """"NUMBER HASH" of the tree."""
    number = NUMBER.search((root / VERSIONS).read_text())
    digest = hashlib.sha256()
    for name in headers(root):
        digest.update(f"{name}\n{substance((root / name).read_text())}\n".encode())
    return f"{number.group(1)} {digest.hexdigest()}"


def main():
    arguments = [a for a in sys.argv[1:] if a != "--record"]
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parents[1]
    now = state(root)
    record = root / RECORD
    if "--record" in sys.argv:
        record.write_text(now + "\n")
        return 0
    before = record.read_text().strip() if record.is_file() else ""
    if now == before:
        return 0
    if now.split()[0] == before.split(" ")[0]:
        print(f"{VERSIONS}: headers that plugins see have changed, but TRIREME_ABI is still {now.split()[0]}: raise it, "
              "then run scripts/check_plugin_abi.py --record")
    else:
        print(f"{RECORD}: TRIREME_ABI was raised: run scripts/check_plugin_abi.py --record")
    return 1


if __name__ == "__main__":
    sys.exit(main())
