#!/usr/bin/env python3
"""What scripts/gpu_check.sh reads from runs and writes as its report. Standard library alone.

same A B TOLERANCE   two run folders: losses, gradient norms and exported weights; exit code 1 when they are apart
rate RUN NAME        a line of JSON: samples a second, memory, time to the first step
page OUT             OUT/report.json and OUT/report.md from what the sections left in OUT
"""
import array
import json
import math
import os
import statistics
import sys


def steps_of(run):
    with open(os.path.join(run, "metrics.jsonl")) as file:
        lines = [json.loads(line) for line in file]
    return [line for line in lines if line["kind"] == "step"]


def weights_of(run):
    """Of a run's export, name to numbers, in the types that the checks train in."""
    with open(os.path.join(run, "model", "model.safetensors"), "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        begin = file.tell()
        out = {}
        for name, info in header.items():
            if name == "__metadata__":
                continue
            first, last = info["data_offsets"]
            file.seek(begin + first)
            out[name] = array.array({"F64": "d", "F32": "f"}[info["dtype"]], file.read(last - first))
    return out


def norm(values):
    return math.sqrt(math.fsum(x * x for x in values))


def apart(a, b, least=0.0):
    """The distance of two lists, relative to the longer one, or to `least`; infinite where a number is none."""
    if len(a) != len(b):
        return math.inf
    off, size = norm([x - y for x, y in zip(a, b)]), max(norm(a), norm(b), least)
    return math.inf if not math.isfinite(off + size) else off / size if off else 0.0


def same(a, b, tolerance):
    rows = [("the losses", [s["loss"] for s in steps_of(a)], [s["loss"] for s in steps_of(b)]),
            ("the gradient norms", [s["grad_norm"] for s in steps_of(a)], [s["grad_norm"] for s in steps_of(b)])]
    ours, theirs = weights_of(a), weights_of(b)
    if ours.keys() != theirs.keys() or not rows[0][1]:
        print(f"{a} and {b}: not the same tensors, or no step")
        return 1
    # A bias without a gradient stays near zero: its last bits are rounding.
    rounding = 1e-6 * norm([norm(values) for values in ours.values()])
    worst, of = max([(apart(x, y), name) for name, x, y in rows] +
                    [(apart(ours[name], theirs[name], rounding), name) for name in ours])
    print(f"{os.path.basename(a)} and {os.path.basename(b)}: {worst:.1e} apart at most ({of}); allowed {tolerance:.0e}")
    return 0 if worst <= tolerance else 1


def rate(run, name):
    """An epoch's last steps are read one after the other as the device ends them, so the times within an epoch are the
    device's; the first epoch warms up."""
    epochs = {}
    for step in steps_of(run):
        epochs.setdefault(step["epoch"], []).append(step)
    with open(os.path.join(run, "summary.json")) as file:
        summary = json.load(file)
    later = [e for n, e in epochs.items() if n > 1 and len(e) > 1] or [e for e in epochs.values() if len(e) > 1]
    rates = [sum(s["samples"] for s in e[1:]) / max(1e-9, e[-1]["time"] - e[0]["time"]) for e in later]
    first = next(iter(epochs.values()))[0]
    ranks = summary["ranks"]
    print(json.dumps({
        "name": name,
        "samples_per_s": round(statistics.median(rates), 2) if rates else None,
        "step_ms": round(1e3 * first["samples"] / statistics.median(rates), 3) if rates else None,
        "data_wait_s": round(sum(s["data_wait"] for e in later for s in e), 3),
        "first_step_s": round(first["samples"] / first["samples_per_s"], 3),
        "peak_tensor_mib": round(max(r["peak_tensor_bytes"] for r in ranks) / 2**20, 1),
        "peak_rss_mib": round(max(r["peak_rss_bytes"] for r in ranks) / 2**20, 1),
        "final_loss": steps_of(run)[-1]["loss"],
    }))
    return 0


def text_of(path):
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def numbers_in(path):
    out = []
    for line in text_of(path).splitlines():
        try:
            out.append(json.loads(line))
        except json.JSONDecodeError:
            out.append({"text": line})
    return out


def page(out):
    sections = []
    for line in text_of(os.path.join(out, "verdicts")).splitlines():
        name, title, code, seconds, limit = line.split("\t")
        verdict = {"0": "passed", "77": "not possible here", "124": "timed out", "137": "timed out"}.get(code, "failed")
        folder = os.path.join(out, name)
        why = text_of(os.path.join(folder, "why")).strip()
        if verdict == "timed out":
            why = f"stopped after {seconds} of {limit} s" if int(limit) > 0 else "the minutes were used up before it"
        elif verdict == "failed" and not why:
            why = f"exit code {code}; see {name}/log"
        sections.append({"name": name, "title": title, "verdict": verdict, "why": why, "seconds": int(seconds),
                         "limit_s": int(limit), "log": f"{name}/log",
                         "numbers": numbers_in(os.path.join(folder, "numbers"))})
    facts = json.loads(text_of(os.path.join(out, "facts.json")) or "{}")
    report = {**facts, "machine": text_of(os.path.join(out, "machine")), "sections": sections}
    with open(os.path.join(out, "report.json"), "w") as file:
        json.dump(report, file, indent=1)
        file.write("\n")
    count = {v: sum(s["verdict"] == v for s in sections) for v in ("passed", "failed", "timed out", "not possible here")}
    lines = ["# GPU check", ""]
    if facts.get("dry"):
        lines += ["A dry run: the CPU in the GPU's place, at small sizes. It tests the script, and no GPU.", ""]
    lines += [", ".join(f"{n} {v}" for v, n in count.items() if n) + ".", "", "| section | verdict | s | |", "|---|---|---|---|"]
    lines += [f"| [{s['title']}]({s['log']}) | {s['verdict']} | {s['seconds']} | {s['why'].replace('|', '/')} |" for s in sections]
    for s in sections:
        if s["numbers"]:
            lines += ["", f"## {s['title'].capitalize()}", "```", *(json.dumps(n) for n in s["numbers"]), "```"]
    lines += ["", "## Machine", "```", report["machine"].rstrip(), "```", ""]
    with open(os.path.join(out, "report.md"), "w") as file:
        file.write("\n".join(lines))
    return 1 if count["failed"] or count["timed out"] else 0


if __name__ == "__main__":
    arguments = sys.argv[2:]
    commands = {"same": lambda a, b, t: same(a, b, float(t)), "rate": rate, "page": page}
    sys.exit(commands[sys.argv[1]](*arguments))
