"""What the checks of the source tree have in common: how they are called and how they answer."""
import sys
from pathlib import Path


def report(breaches, files_are, breaches_are):
    """Prints what breaches(root) has found, a line each, and a summary. Returns the exit code: 0 when there is no breach
    in at least one file. The tree is the first argument of the program, else that of this file."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent).resolve()
    found, files = breaches(root)
    for line in found:
        print(line)
    print(f"{files} {files_are}, {len(found)} {breaches_are}")
    return 1 if found or not files else 0
