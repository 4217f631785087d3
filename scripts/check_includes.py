#!/usr/bin/env python3
"""Checks the include rules of docs/architecture.md: who may include whom. Python's standard library alone.

    scripts/check_includes.py [ROOT]      exit code 1 and one line a breach: file:line: what, and what is allowed
"""
import re
import sys
from pathlib import Path

from check_report import report

# From low to high: each folder of core sees only what stands before it.
CORE = ["base", "config", "launch", "comm", "program", "shard", "nn", "shardformer", "data", "optim", "checkpoint", "pipeline",
        "booster", "tune", "accelerate", "setup", "resume", "plan", "train"]
LAYERS = {"shardformer", "pipeline", "zero"}
SOURCES = {".h", ".cpp", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def unit(path):
    """The folder that the rules speak of: "core/comm", "models", "plugins", ..."""
    parts = Path(path).parts
    return "/".join(parts[:2]) if parts[0] == "core" else parts[0]


def allowed(source, target):
    """None when a file of unit `source` may include one of unit `target`, else the rule that forbids it."""
    if source == target:
        return None
    if target in ("apps", "tests"):
        return f"nothing includes {target}"
    if source == "trireme.h":
        known = target.startswith("core/") or target in ("datasets", "plugins", "tasks")
        return None if known else "trireme.h sees core, datasets, tasks and the plugins' options"
    if source in ("apps", "tests", "bench", "trireme.cpp"):
        return None
    if source.startswith("core/"):
        rank = CORE.index(source[5:])
        if target.startswith("core/") and CORE.index(target[5:]) < rank:
            return None
        return f"{source} sees only {', '.join('core/' + c for c in CORE[:rank]) or 'itself'}"
    if source == "models":
        return None if target in ("core/base", "core/nn") else "models see only core/base and core/nn"
    if source == "tokenizers":
        return None if target == "core/base" else "tokenizers see only core/base"
    if source == "datasets" and target == "tokenizers":
        return None
    if source in LAYERS | {"datasets", "tasks"}:
        return None if target.startswith("core/") else f"{source} sees core alone"
    if source == "plugins":
        return None if target.startswith("core/") or target in LAYERS | {"models"} else "plugins see core and its layers"
    return f"no rule knows the folder {source}: add it to scripts/check_includes.py and docs/architecture.md"


def breaches(root):
    """One line for each include that breaks a rule."""
    units = {f"core/{c}" for c in CORE} | LAYERS | {"models", "tokenizers", "datasets", "tasks", "plugins", "apps", "tests", "bench"}
    tops = sorted({u.split("/")[0] for u in units})
    found = []
    files = sorted(f for top in tops for f in (root / top).rglob("*") if f.suffix in SOURCES)
    tops_of_all = ["trireme.h", "trireme.cpp"]  # the header that has all of core for programs, and what it names
    files += [root / name for name in tops_of_all if (root / name).exists()]
    units.update(tops_of_all)
    for file in files:
        path = file.relative_to(root).as_posix()
        source = unit(path)
        if source not in units:
            found.append(f"{path}:1: {source} is no folder of core that the rules know ({', '.join(CORE)})")
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            kind, name = match.groups()
            where = f"{path}:{number}: #include {line.split('include', 1)[1].strip()}"
            if kind == "<":
                if name == "torch/torch.h":
                    found.append(f"{where}: takes 15 s to compile; include the headers that are used")
                continue
            if name.split("/")[0] not in [*tops, "trireme.h"]:
                found.append(f'{where}: our includes start at the root ("core/base/error.h")')
            elif not (root / name).is_file():
                found.append(f"{where}: there is no such file")
            elif rule := allowed(source, unit(name)):
                found.append(f"{where}: {rule}")
    return found, len(files)


if __name__ == "__main__":
    sys.exit(report(breaches, "files", "breaches of the include rules"))
