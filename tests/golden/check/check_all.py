"""Checks all files that docs/files.md names against the libraries of others, and prints a line for each.

First the makers of tests/golden/make run again, in a copy, and must write the committed files: what the tests compare
with is what these versions of the libraries compute. Then small runs of trireme are read by the others' libraries.

Run:  cmake --build --preset release --target trireme_launcher trireme_worker model_logits pixel_dump
      python tests/golden/check/check_all.py build/release
Needs the packages that the scripts name (torch 2.11, torchvision 0.26, transformers 5.24, timm 1.0, peft 0.21, trl 1.16,
tokenizers 0.23, regex 2026.11, sentencepiece 0.2, Pillow 13, tensorboard). Exit status 0: every line says "equal"; 1: not.
"""
import argparse
import contextlib
import io
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file

ROOT = pathlib.Path(__file__).parents[3]
CHECKS = pathlib.Path(__file__).parent
MAKERS = ("formats", "pixels", "augment", "resnet", "vit", "positions", "bert", "gpt2", "llama", "lora", "state_dict",
          "checkpoint", "chats", "optim", "offsets", "unicode")
TEXT = "hidden_size = 32\nnum_layers = 2\nnum_heads = 4\nintermediate_size = 48\n"
RUNS = {
    "vit": 'name = "vit"\npatch_size = 8\n' + TEXT,
    "vit_timm": 'name = "vit"\npatch_size = 8\nlayer_norm_eps = 1e-6\n' + TEXT,
    "resnet": 'name = "resnet"\ndepth = 18\n',
    "gpt2": 'name = "gpt2"\n' + TEXT,
    "llama": 'name = "llama"\nnum_key_value_heads = 2\n' + TEXT,
    "qwen3": 'name = "qwen3"\nnum_key_value_heads = 2\nhead_size = 8\n' + TEXT,
    "bert": 'name = "bert"\n' + TEXT,
}
IMAGES = {"vit": "check_export.py", "vit_timm": "check_timm.py", "resnet": "check_timm.py"}


def same_values(a, b):
    """Whether two contents of JSON or of torch.save are equal but for versions of libraries and the last bits of numbers,
    which depend on the processor."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=1e-9, atol=1e-9)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(str(k).endswith("_version") or same_values(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if all(isinstance(item, str) for item in [*a, *b]):
            return sorted(a) == sorted(b)  # PEFT's sets have no order
        return len(a) == len(b) and all(map(same_values, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= 1e-7 * max(1, abs(b)) or a != a and b != b  # some are float32
    return repr(a) == repr(b)


def contents(path):
    if path.suffix == ".json":
        return json.loads(path.read_text())
    if path.suffix == ".safetensors":
        return load_file(path)
    return torch.load(path, weights_only=False) if path.suffix == ".pth" else None


def same_file(a, b):
    return a.read_bytes() == b.read_bytes() or contents(a) is not None and same_values(contents(a), contents(b))


def make_again(name, scratch):
    """What differs from the committed files; "" when nothing does."""
    project, copy = scratch / "project", scratch / "project" / "tests" / "golden"
    shutil.rmtree(project, ignore_errors=True)
    shutil.copytree(ROOT / "tests" / "golden", copy)
    (project / "tokenizers").mkdir()  # where make_unicode writes its table
    made = subprocess.run([sys.executable, copy / "make" / f"make_{name}.py"], capture_output=True, text=True)
    if made.returncode != 0:
        return made.stderr.strip().splitlines()[-1]
    files = [file for file in project.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    with contextlib.chdir(copy):  # loading a file of ours that attacks its reader makes a file there
        return ", ".join(str(file.relative_to(project)) for file in files
                         if not same_file(file, ROOT / file.relative_to(project)))


def tokenizers_again():
    """The committed tokenizers of which Hugging Face's library makes other ids than the committed ones. They are not
    trained again: a training draws among equal words."""
    sys.path.insert(0, str(ROOT / "tests" / "golden" / "make"))
    import make_tokenizers as make
    lines = json.loads((make.OUT / "lines.json").read_text())
    wanted = json.loads((make.OUT / "expected.json").read_text())
    with contextlib.redirect_stdout(io.StringIO()):
        return ", ".join(name for name in wanted
                         if json.loads(json.dumps(make.expected(make.Reference(make.OUT / name), lines))) != wanted[name])


def train(build, scratch, name, model, more=""):
    data = (f'name = "image_folder"\npath = "{scratch}/leaves"\nimage_size = 32\n' if name in IMAGES else
            f'name = "text"\ntrain = "{ROOT}/docs/running.md"\ndocuments = "blank_lines"\nblock = 32\n'
            f'tokenizer = "{ROOT}/tests/golden/tokenizers/{"bert_json" if name == "bert" else "qwen"}"\n'
            + ("masking = 0.15\n" if name == "bert" else ""))
    config = scratch / f"{name}.toml"
    config.write_text(f'[run]\ndir = "{scratch}/{name}"\ndevice = "cpu"\ntensorboard = true\n[model]\n{model}[data]\n{data}'
                      f'[train]\nmax_steps = 3\nglobal_batch = 8\nprecision = "fp64"\n{more}')
    subprocess.run([build / "bin" / "trireme", "train", config, "--ranks", "2"], check=True, stdout=subprocess.DEVNULL)
    return scratch / name


def check(script, *arguments):
    """The last line of what a check says; "" when it finds everything equal."""
    done = subprocess.run([sys.executable, CHECKS / script, *map(str, arguments)], capture_output=True, text=True)
    return "" if done.returncode == 0 else (done.stdout + done.stderr).strip().splitlines()[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("build", type=pathlib.Path)
    build = parser.parse_args().build.resolve()
    failed = False

    def say(what, problem):
        nonlocal failed
        failed = failed or problem != ""
        print(f"{what:<28}{problem or 'equal'}", flush=True)

    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        for maker in MAKERS:
            say(f"make_{maker}", make_again(maker, scratch))
        say("make_tokenizers", tokenizers_again())
        subprocess.run([build / "bin" / "trireme", "data", "leaves", "--out", scratch / "leaves", "--images", "60", "--size",
                        "32"], check=True, stdout=subprocess.DEVNULL)
        tool = build / "tests" / "unit" / "models" / "model_logits"
        for kind, model in RUNS.items():
            run = train(build, scratch, kind, model)
            script = IMAGES.get(kind, "check_text_export.py")
            folder = run / "model"
            if kind == "vit_timm":
                folder = scratch / "timm"
                subprocess.run([build / "bin" / "trireme", "checkpoint", "export", run, "--to", folder, "--names", "timm"],
                               check=True, stdout=subprocess.DEVNULL)
            say(f"{script} {kind}", check(script, folder, "--tool", tool))
        say("check_tensorboard.py", check("check_tensorboard.py", scratch / "vit" / "tensorboard", "--metrics",
                                          scratch / "vit" / "metrics.jsonl"))
        adapted = train(build, scratch, "gpt2_lora", f'name = "gpt2"\nweights = "{scratch}/gpt2/model"\n',
                        "[lora]\nrank = 4\nmerge = true\n")
        say("check_adapters.py gpt2", check("check_adapters.py", adapted))
        say("check_pixels.py", check("check_pixels.py", build / "tests" / "unit" / "datasets" / "pixel_dump",
                                     scratch / "leaves" / "train" / "healthy"))
        say("check_chats.py", check("check_chats.py", build / "bin" / "trireme"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
