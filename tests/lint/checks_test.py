"""The checks of scripts/ on small trees made for them: each rule must see its breach, and nothing else."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


class Tree(unittest.TestCase):
    def run_check(self, script, files):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                file = Path(folder, name)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            done = subprocess.run([sys.executable, SCRIPTS / script, folder], capture_output=True, text=True)
            return done.returncode, done.stdout


class IncludeRules(Tree):
    # includer, includee, whether the rules allow it
    CASES = [
        ("core/comm/a.cpp", "core/base/b.h", True),
        ("core/comm/a.cpp", "core/comm/b.h", True),
        ("core/comm/a.cpp", "core/data/b.h", False),
        ("core/base/a.h", "core/config/b.h", False),
        ("core/train/a.cpp", "core/booster/b.h", True),
        ("core/booster/a.cpp", "core/train/b.h", False),
        ("core/booster/a.cpp", "plugins/ddp/b.h", False),
        ("core/nn/a.cpp", "models/vit/b.h", False),
        ("core/nn/a.cpp", "core/shardformer/b.h", False),
        ("core/shardformer/a.h", "core/nn/b.h", True),
        ("core/booster/a.cpp", "shardformer/b.h", False),
        ("models/vit/a.cpp", "core/nn/b.h", True),
        ("models/vit/a.cpp", "core/base/b.h", True),
        ("models/vit/a.cpp", "core/comm/b.h", False),
        ("shardformer/a.cpp", "core/comm/b.h", True),
        ("shardformer/a.cpp", "zero/b.h", False),
        ("zero/a.cpp", "pipeline/b.h", False),
        ("plugins/x/a.cpp", "zero/b.h", True),
        ("plugins/x/a.cpp", "apps/b.h", False),
        ("apps/a.cpp", "plugins/x/b.h", True),
        ("tests/a.cpp", "tests/ranks/b.h", True),
        ("core/base/a.cpp", "tests/b.h", False),
    ]

    def test_who_may_include_whom(self):
        for source, target, fine in self.CASES:
            with self.subTest(source=source, target=target):
                code, out = self.run_check("check_includes.py", {source: f'#include "{target}"\n', target: "\n"})
                self.assertEqual(code, 0 if fine else 1, out)
                self.assertEqual(f"{source}:1:" in out, not fine, out)

    def test_form(self):
        for line, fine in [("#include <vector>", True), ("#include <torch/torch.h>", False),
                           ('#include "error.h"', False), ('#include "core/base/gone.h"', False)]:
            with self.subTest(line=line):
                code, out = self.run_check("check_includes.py", {"core/base/error.h": "", "core/base/a.cpp": line})
                self.assertEqual(code, 0 if fine else 1, out)

    def test_an_empty_tree_is_no_success(self):
        self.assertEqual(self.run_check("check_includes.py", {})[0], 1)

    def test_an_unknown_folder_of_core(self):
        self.assertEqual(self.run_check("check_includes.py", {"core/extra/a.h": ""})[0], 1)


class CallRules(Tree):
    def test_what_is_called_in_one_file_alone(self):
        for name, line, fine in [("core/base/json_parse.cpp", "auto x = nlohmann::json::parse(text);", True),
                                 ("core/train/a.cpp", "auto x = nlohmann::json::parse(text);", False),
                                 ("examples/a.cpp", "auto x = json::parse(file, nullptr, false);", False),
                                 ("zero/a.cpp", "file >> json;", False),
                                 ("zero/a.cpp", "auto x = nlohmann::ordered_json::parse(text);", False),
                                 ("zero/a.cpp", "auto x = parse_json(text);", True),
                                 ("zero/a.cpp", "catch (const nlohmann::json::parse_error& error) {", True),
                                 ("zero/a.cpp", "call(x);  // as nlohmann::json::parse() calls it", True),
                                 ("core/config/table_parse.cpp", "toml::parse(text, source);", True),
                                 ("apps/a.cpp", "toml::parse_file(path);", False),
                                 ("core/checkpoint/a.cpp", "thread_ = std::thread(body);", False),
                                 ("core/comm/cuda/a.cpp", "std::vector<std::jthread> threads;", False),
                                 ("core/comm/cuda/a.h", "std::thread thread_;", True),
                                 ("core/data/a.cpp", "std::thread(body).join();", True),
                                 ("tests/a.cpp", "auto x = nlohmann::json::parse(text);", True)]:
            with self.subTest(name=name, line=line):
                code, out = self.run_check("check_calls.py", {name: line + "\n", "core/base/b.h": ""})
                self.assertEqual(code, 0 if fine else 1, out)
                self.assertEqual(f"{name}:1:" in out, not fine, out)


class PluginAbi(Tree):
    def test_a_changed_header_needs_another_number(self):
        entry = '#include "core/a.h"\n'
        versions = '#define TRIREME_ABI "{}"\n'

        def tree(folder, number, header):
            for name, text in {"core/booster/plugin_entry.h": entry, "core/booster/versions.h": versions.format(number),
                               "core/a.h": header, "core/unseen.h": header * 2}.items():
                file = Path(folder, name)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)

        def check(folder, *more):
            return subprocess.run([sys.executable, SCRIPTS / "check_plugin_abi.py", folder, *more],
                                  capture_output=True, text=True)

        with tempfile.TemporaryDirectory() as folder:
            tree(folder, 3, "int f();\n")
            self.assertEqual(check(folder).returncode, 1)  # nothing is recorded
            check(folder, "--record")
            self.assertEqual(check(folder).returncode, 0)
            tree(folder, 3, "// A comment.\nint  f();\n")
            self.assertEqual(check(folder).returncode, 0)
            tree(folder, 3, "int f(int);\n")
            done = check(folder)
            self.assertEqual(done.returncode, 1)
            self.assertIn("TRIREME_ABI is still 3: raise it", done.stdout)
            tree(folder, 4, "int f(int);\n")
            self.assertIn("was raised: run", check(folder).stdout)
            check(folder, "--record")
            self.assertEqual(check(folder).returncode, 0)


class Documents(Tree):
    def test_links_and_paths(self):
        base = {"README.md": "# Read me\n## The way\n", "docs/a.md": "# A\n", "core/base/error.h": ""}
        for text, fine in [("[a](docs/a.md)", True), ("[a](docs/b.md)", False), ("[a](docs/a.md#a)", True),
                           ("[a](docs/a.md#b)", False), ("[w](#the-way)", True), ("[x](https://example.org/x)", True),
                           ("`core/base`", True), ("`core/gone`", False), ("`core/*/x`", True),
                           ("```\n`core/gone`\n```", True), ("`configs/NAME.toml`", True)]:
            with self.subTest(text=text):
                files = dict(base)
                files["README.md"] += text + "\n"
                code, out = self.run_check("check_docs.py", files)
                self.assertEqual(code, 0 if fine else 1, out)


class Kernels(unittest.TestCase):
    def run_check(self, name, *instructions):
        sass = f"arch = sm_90\n\t\tFunction : {name}\n" + "".join(f"    /*0010*/   {i} R1 ;\n" for i in instructions)
        with tempfile.TemporaryDirectory() as folder:
            tool = Path(folder, "cuobjdump")
            tool.write_text("#!/bin/sh\ncat \"$2\"\n")
            tool.chmod(0o755)
            library = Path(folder, "library")
            library.write_text(sass)
            done = subprocess.run([sys.executable, SCRIPTS / "check_kernels.py", library, tool], capture_output=True)
            return done.returncode

    def test_packs_and_local_memory(self):
        packs, single = "8add_normI13__nv_bfloat16Li8ELi3EE", "8add_normI13__nv_bfloat16Li1ELi0EE"
        for name, instructions, code in [
            (packs, ["STG.E.128", "STG.E", "STG.E"], 0),
            (packs, ["STG.E.128", "STG.E", "STG.E", "STG.E"], 1),
            (packs, ["STG.E.128.SYS"], 0),
            (packs, ["STG.E.U16"], 1),
            (packs, ["STG.E.128", "STL.64"], 1),
            (packs, ["STG.E.128", "@!P0 LDL"], 1),
            (single, ["STG.E.U16"], 1),  # no kernel of packs was seen
        ]:
            with self.subTest(name=name, instructions=instructions):
                self.assertEqual(self.run_check(name, *instructions), code)

    def test_no_tool(self):
        done = subprocess.run([sys.executable, SCRIPTS / "check_kernels.py", "library", "CUOBJDUMP-NOTFOUND"])
        self.assertEqual(done.returncode, 77)


if __name__ == "__main__":
    unittest.main()
