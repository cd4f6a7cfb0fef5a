# SPDX-License-Identifier: Apache-2.0
"""Pairs for GPUs that `aisp new` writes, built as a project of one's own and run on the GPUs that are here: right as they are,
and measured."""
import json
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from harness import AISP, QUICK, EndToEnd, everything_said
from own_project import cmake, configure, installed, launching_pairs, new_pairs

KINDS = {"kernels": [], "calls": ["--library"], "copies": ["--multi-gpu"]}
PROJECT = """cmake_minimum_required(VERSION 3.24)
project(mine LANGUAGES CXX)
find_package(aisp REQUIRED)
aisp_add_pairs(mine kernels)
aisp_link(mine)
"""


class NewOnGpu(EndToEnd):
    @classmethod
    def setUpClass(cls):
        machine = json.loads(subprocess.run([AISP, "doctor", "--json"], capture_output=True, text=True, timeout=120).stdout)["machine"]
        if not machine["gpus"]:
            raise unittest.SkipTest("no GPU")
        cls.gpus = len(machine["gpus"])
        cls.place = pathlib.Path(tempfile.mkdtemp(prefix="aisp-new-"))
        cls.addClassCleanup(shutil.rmtree, cls.place)
        project = cls.place / "project"
        new_pairs(project / "kernels/fresh", KINDS)
        launching_pairs(project / "kernels/fresh", "chain")
        (project / "CMakeLists.txt").write_text(PROJECT)
        configure(project, installed(cls.place))
        cmake("--build", project / "build")
        cls.mine = project / "build/mine"

    def passed(self, finished):
        """The pairs, without those that this machine has too little for."""
        self.assert_code(finished, 0)
        pairs = [finished.pair(f"fresh:{name}") for name in [*KINDS, "chain"]]
        for pair in pairs:
            with self.subTest(pair["target"]):
                said = everything_said(pair)
                if pair["target"] == "fresh:copies" and self.gpus == 1:
                    self.assertIn("needs 2 GPUs with peer access, found 1", said)
                elif pair["status"] == "skipped":
                    self.assertRegex(said, "cannot reach GPU|is not installed")
                else:
                    self.assertEqual([pair["status"], *(v["status"] for v in pair["variants"])], ["passed"] * (1 + len(pair["variants"])), said)
        return [pair for pair in pairs if pair["status"] == "passed"]

    def test_they_are_right(self):
        self.assertIn("fresh:kernels", [pair["target"] for pair in self.passed(self.call("verify", "-t", "fresh", program=self.mine))])

    def test_they_are_measured(self):
        for pair in self.passed(self.call("run", "-t", "fresh", *QUICK, program=self.mine)):
            if pair["target"] == "fresh:chain":
                continue  # a launch from the device is not always the faster one
            with self.subTest(pair["target"]):
                self.assertGreater(pair["variants"][1]["speedup"]["value"], 0.9)


if __name__ == "__main__":
    unittest.main()
