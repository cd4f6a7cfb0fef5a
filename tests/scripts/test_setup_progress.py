# SPDX-License-Identifier: Apache-2.0
"""The build times that setup.sh prints: measured, and nothing where nothing was measured."""
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("AISP_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
SCRIPT = SOURCE / "scripts/setup/progress.py"
specification = importlib.util.spec_from_file_location("progress", SCRIPT)
progress = importlib.util.module_from_spec(specification)
specification.loader.exec_module(progress)


class Progress(unittest.TestCase):
    def test_what_remains_takes_what_its_kind_took_so_far(self):
        objects = {"a.cpp.o": "cpp", "b.cpp.o": "cpp", "c.cpp.o": "cpp", "d.cu.o": "cu", "e.cu.o": "cu"}
        self.assertIsNone(progress.seconds_left(objects, {"a.cpp.o": 2}, 1), "of CUDA nothing is known yet")
        taken = {"a.cpp.o": 2, "b.cpp.o": 4, "d.cu.o": 30}
        self.assertEqual(progress.seconds_left(objects, taken, 1), 3 + 30)
        self.assertEqual(progress.seconds_left(objects, taken, 3), 11)
        self.assertEqual(progress.seconds_left(objects, dict.fromkeys(objects, 9), 1), 0)

    def test_text(self):
        self.assertEqual(progress.text_of(3, 350, None), "3 of 350 steps")
        self.assertEqual(progress.text_of(120, 350, 754), "120 of 350 steps, about 13 min left")
        self.assertEqual(progress.text_of(349, 350, 20), "349 of 350 steps, less than 2 min left")

    def test_times_are_those_of_ninja(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(progress.seconds_taken(folder), {})
            (pathlib.Path(folder) / ".ninja_log").write_text("# ninja log v5\n0\t2500\t17\ta.cpp.o\tff\n10\t20\n")
            self.assertEqual(progress.seconds_taken(folder), {"a.cpp.o": 2.5})

    def test_a_build_keeps_its_status_and_its_log(self):
        with tempfile.TemporaryDirectory() as folder:
            cmake = pathlib.Path(folder) / "cmake"
            cmake.write_text("#!/bin/sh\necho \"[1/2] $*\"\nexit 3\n")
            cmake.chmod(0o755)
            script = f"set -euo pipefail; root={SOURCE}; . {SOURCE}/scripts/setup/common.sh; . {SOURCE}/scripts/setup/build.sh; jobs=4; build_targets b log aisp || echo $?"
            done = subprocess.run(["bash", "-c", script], cwd=folder, env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}, capture_output=True,
                                  text=True, timeout=60, check=False)
            self.assertEqual(done.stdout, "3\n", done.stderr)
            self.assertIn("[1/2] --build b --parallel 4 --target aisp", (pathlib.Path(folder) / "build/logs/log.log").read_text())

    def test_ends_with_its_input_and_says_nothing_of_a_short_build(self):
        done = subprocess.run([sys.executable, SCRIPT, "/nowhere", "/nowhere/log", "2"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=30, check=False)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))


if __name__ == "__main__":
    unittest.main()
