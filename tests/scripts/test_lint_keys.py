# SPDX-License-Identifier: Apache-2.0
"""The keys by which scripts/lint remembers what was clean, on a made-up tree with a made-up ninja and linter."""
import json
import subprocess
import sys

from machine import SOURCE, Machine

SCRIPT = SOURCE / "scripts/lib/lint_keys.py"


class LintKeys(Machine):
    def tree(self, name, header="int x;", checks="-*", deps="VALID", split=False):
        root = self.work / name
        for path, text in {"src/a.cpp": '#include "a.hpp"', "src/a.hpp": header, ".clang-tidy": checks, "scripts/lint": "lint"}.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        build = root / "build"
        build.mkdir()
        command = f"c++ -I{root}/src -o a.o -c {root}/src/a.cpp"
        compiled = {"arguments": command.split()} if split else {"command": command}
        (build / "compile_commands.json").write_text(json.dumps([{"directory": str(build), "file": f"{root}/src/a.cpp", **compiled}]))
        self.tool("ninja", f"#!/bin/sh\nprintf 'a.o: #deps 2, deps mtime 1 ({deps})\\n    ../src/a.cpp\\n    ../src/a.hpp\\n'\n")
        self.tool("tidy", "#!/bin/sh\necho 14\n")
        return root

    def key(self, root):
        found = subprocess.run([sys.executable, SCRIPT, "build", str(self.bin / "tidy"), "src/a.cpp"], cwd=root, capture_output=True, text=True,
                               env={"PATH": f"{self.bin}:/usr/bin:/bin"})
        self.assertEqual(found.returncode, 0, found.stderr)
        key, file = found.stdout.split()
        self.assertEqual(file, "src/a.cpp")
        return key

    def test_clones_share_keys_and_changes_do_not(self):
        key = self.key(self.tree("one"))
        self.assertRegex(key, r"^[0-9a-f]{64}$")
        self.assertEqual(self.key(self.tree("two")), key)
        self.assertNotEqual(self.key(self.tree("three", header="int y;")), key)
        self.assertNotEqual(self.key(self.tree("four", checks="*")), key)

    def test_both_ways_to_write_how_a_file_is_compiled(self):
        self.assertEqual(self.key(self.tree("words", split=True)), self.key(self.tree("line")))

    def test_without_files_it_lists_what_is_compiled_for_src(self):
        root = self.tree("batched")
        build = root / "build"
        files = [f"{build}/generated/batches/core_cli_0.cpp", f"{root}/src/a.cpp", f"{build}/generated/registry.cpp", f"{root}/chapters/ch01/b.cpp",
                 f"{root}/src/kernel.cu", f"{build}/tests/generated/batches/test_cli_0.cpp"]
        (build / "compile_commands.json").write_text(json.dumps([{"directory": str(build), "file": file, "command": f"c++ -o a.o -c {file}"}
                                                                 for file in files]))
        found = subprocess.run([sys.executable, SCRIPT, "build", str(self.bin / "tidy")], cwd=root, capture_output=True, text=True,
                               env={"PATH": f"{self.bin}:/usr/bin:/bin"}, check=True)
        self.assertEqual([line.split("\t")[1] for line in found.stdout.splitlines()], ["build/generated/batches/core_cli_0.cpp", "src/a.cpp"])

    def test_what_was_not_built_as_it_is_has_none(self):
        self.assertEqual(self.key(self.tree("old", deps="STALE")), "-")
