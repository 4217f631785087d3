#!/usr/bin/env python3
"""Writes every text that a user can meet to standard output, for a reader to go through: the help of each command, every
key's description, and the sentences in the sources (messages of errors among them) with file and line.

    scripts/all_texts.py build/release/bin/trireme > texts.txt
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("apps", "core", "models", "pipeline", "plugins", "shardformer", "zero")
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
LITERALS = re.compile(r'"(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*')


def said_by(trireme, *arguments):
    title = " ".join(("trireme", *arguments))
    text = subprocess.run((trireme, *arguments), capture_output=True, text=True, check=True).stdout
    return f"==== {title}\n{text}\n"


def sentences(path):
    """Literals of three words and more, adjacent ones joined, outside comments and includes."""
    source = path.read_text()
    for found in LITERALS.finditer(source):
        before = source[source.rfind("\n", 0, found.start()) + 1 : found.start()]
        text = "".join(LITERAL.findall(found.group(0)))
        if "//" not in before and text.count(" ") >= 2:
            yield f"{path.relative_to(ROOT)}:{source.count(chr(10), 0, found.start()) + 1}: {text}"


def main():
    trireme = sys.argv[1]
    commands = ("train", "eval", "predict", "generate", "tokenize", "verify", "bench", "checkpoint", "inspect", "runs", "top", "plot", "data",
                "plugins", "config", "env", "launch")
    print(said_by(trireme, "--help"), *(said_by(trireme, command, "--help") for command in commands))
    print(said_by(trireme, "plugins"), said_by(trireme, "config", "--explain-all"))
    print("==== sentences in the sources")
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".cpp", ".h", ".cu"):
                print(*sentences(path), sep="\n")


if __name__ == "__main__":
    main()
