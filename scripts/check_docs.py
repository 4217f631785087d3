#!/usr/bin/env python3
"""Checks that the links and the paths that the documents name exist. Python's standard library alone.

    scripts/check_docs.py [ROOT]      exit code 1 and one line a broken link: file:line: what is missing

Looked at: Markdown links to files (and to headings, #like-this), and inline code that starts with a folder of the
project (`core/nn`, `configs/leaves_vit.toml`); paths with a wildcard or a place-holder (*, <, $, {, NAME) are left out.
In docs/reliability.md also the names of tests (`Stop.SaysWhatCouldNotBeSaved`).
"""
import re
import sys
from pathlib import Path

from check_report import report

FOLDERS = ("core", "models", "tokenizers", "datasets", "tasks", "shardformer", "pipeline", "zero", "plugins", "apps", "configs", "tests", "bench", "docs",
           "examples", "scripts", "cmake", ".ci")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
TEST = re.compile(r"^TEST(?:_F|_P)?\((\w+), (\w+)\)", re.M)
TEST_NAME = re.compile(r"[A-Z]\w*\.[A-Z@]\S*")
FENCE = re.compile(r"^\s*```")


def anchor(heading):
    """GitHub's name of a heading."""
    text = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return text.replace(" ", "-")


def anchors(file):
    lines = file.read_text(encoding="utf-8").splitlines()
    return {anchor(line.lstrip("#")) for line in lines if line.startswith("#")}


def tests(root):
    found = set()
    for file in (root / "tests").rglob("*.cpp"):
        found.update(f"{suite}.{name}" for suite, name in TEST.findall(file.read_text(encoding="utf-8")))
    return found


def check(root, file):
    known = tests(root) if file.name == "reliability.md" else None
    fenced = False
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if FENCE.match(line):
            fenced = not fenced
            continue
        if fenced:
            continue
        where = f"{file.relative_to(root)}:{number}"
        for target in LINK.findall(line):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, heading = target.partition("#")
            linked = (file.parent / path).resolve() if path else file
            if not linked.exists():
                yield f"{where}: the link {target} leads nowhere"
            elif heading and linked.suffix == ".md" and heading not in anchors(linked):
                yield f"{where}: {linked.name} has no heading #{heading}"
        for code in CODE.findall(line):
            if known is not None and TEST_NAME.fullmatch(code) and code not in known:
                yield f"{where}: there is no test {code}"
            path = code.split()[0].split(":")[0].rstrip("/.,") if code.split() else ""
            if "/" not in path or path.split("/")[0] not in FOLDERS or re.search(r"[*<>${}…]|\b(NAME|DIR)\b", path):
                continue
            if not (root / path).exists():
                yield f"{where}: `{path}` does not exist"


def breaches(root):
    """One line for each broken reference, and the number of documents."""
    files = sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "bench").rglob("*.md"),
                    *(root / "examples").rglob("*.md")])
    return [line for file in files for line in check(root, file)], len(files)


if __name__ == "__main__":
    sys.exit(report(breaches, "documents", "broken references"))
