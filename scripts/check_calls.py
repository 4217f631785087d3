#!/usr/bin/env python3
"""Checks that what has one right way in the product is done in one file. Python's standard library alone.

    scripts/check_calls.py [ROOT]      exit code 1 and one line a breach: file:line: what, and what to call instead
"""
import re
import sys

from check_report import report

PRODUCT = ["apps", "core", "datasets", "examples", "models", "pipeline", "plugins", "shardformer", "tasks", "tokenizers", "zero"]
SOURCES = {".h", ".cpp", ".cu", ".cuh"}
# What is called, the only file that may, why the others call that instead, and the folders in which the rule holds.
EVERYWHERE = ""
RULES = [
    (re.compile(r"json\s*::\s*(parse|sax_parse|from_\w+)\s*\(|>>\s*(\w+_)?json\b"),
     "core/base/json_parse.cpp", "parse_json() of core/base/json_parse.h limits how deep JSON is nested",
     EVERYWHERE),
    (re.compile(r"\btoml\s*::\s*parse"), "core/config/table_parse.cpp",
     "parse_text() of core/config/table.h limits how deep tables are nested", EVERYWHERE),
    (re.compile(r"std\s*::\s*j?thread\s*[({>]"), "core/base/device_thread.h",
     "device_thread() of core/base/device_thread.h: a thread that may touch CUDA must first set its device",
     ("core/comm/cuda/", "core/checkpoint/")),
]


def breaches(root):
    """One line for each call that breaks a rule, and the number of files."""
    found = []
    files = sorted(f for top in PRODUCT for f in (root / top).rglob("*") if f.suffix in SOURCES)
    for file in files:
        path = file.relative_to(root).as_posix()
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            code = line.split("//", 1)[0]
            for call, only, why, folders in RULES:
                if path != only and path.startswith(folders) and call.search(code):
                    found.append(f"{path}:{number}: {code.strip()}: {why}")
    return found, len(files)


if __name__ == "__main__":
    sys.exit(report(breaches, "files", "calls in the wrong place"))
