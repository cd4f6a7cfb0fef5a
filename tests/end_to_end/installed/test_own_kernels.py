# SPDX-License-Identifier: Apache-2.0
"""A project of one's own, docs/your-own-kernels, built against an installed aisp: three lines make a program with all its commands."""
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from harness import AISP, QUICK, EndToEnd
from own_project import cmake, configure, copy_of_the_example, installed, launching_pairs, new_pairs
from report_page import opened


class OwnKernels(EndToEnd):
    @classmethod
    def setUpClass(cls):
        cls.place = pathlib.Path(tempfile.mkdtemp(prefix="aisp-own-"))
        cls.addClassCleanup(shutil.rmtree, cls.place)
        cls.prefix, cls.project = installed(cls.place), copy_of_the_example(cls.place)
        new_pairs(cls.project / "kernels/fresh", {"first": ["--host"]})
        launching_pairs(cls.project / "kernels/fresh", "chain", "other_chain")
        configure(cls.project, cls.prefix)
        cmake("--build", cls.project / "build")
        cls.mine = cls.project / "build/mine"

    def test_lists_ones_own_pairs_and_no_others(self):
        listed = self.call("list-targets", program=self.mine)
        self.assert_code(listed, 0)
        self.assertEqual([line.split()[0] for line in listed.out.splitlines()], ["bytes:byte_counts", "fresh:chain", "fresh:first", "fresh:other_chain", "sums:rms_norm", "sums:row_sums"])

    def test_measures_and_verifies_a_pair(self):
        finished = self.call("run", "-t", "bytes", *QUICK, program=self.mine)
        self.assert_code(finished, 0)
        pair = finished.pair("bytes:byte_counts")
        self.assertEqual((pair["status"], pair["chapter"]), ("passed", "bytes"))
        self.assertRegex(pair["source_digest"], "^[0-9a-f]{64}$")
        page = self.call("report", "latest", "--html", "-", program=self.mine)
        self.assertRegex(opened(page.out), r'<div class="sides">(?s:.*)>kernels/bytes/byte_counts\.cpp:\d+</span>')

    def test_device_code_that_is_linked_has_a_digest_and_passes_the_review(self):
        digest = (self.project / "build/generated/code/kernels/fresh/chain.cu.txt").read_text()
        self.assertRegex(digest, "^digest [1-9][0-9]+ [0-9a-f]{64}\n")
        checked = subprocess.run([self.prefix / "lib/cmake/aisp/scripts/check-pair", self.project / "kernels/fresh/chain.cu"], capture_output=True, text=True)
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)

    def test_what_aisp_new_writes_and_what_the_page_shows_pass(self):
        finished = self.call("verify", "-t", "fresh", "-t", "rms_norm", program=self.mine)
        self.assert_code(finished, 0)
        self.assertRegex(finished.out, "fresh:first +passed")
        self.assertRegex(finished.out, "sums:rms_norm +passed")

    def test_the_reviewer_comes_along(self):
        checked = subprocess.run([self.prefix / "lib/cmake/aisp/scripts/check-pair", self.project / "kernels/fresh/first.cpp"], capture_output=True, text=True)
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
        self.assertIn("first.cpp: nothing found; next: verify --targets fresh:first", checked.stdout)
        self.assertNotIn("compiler", checked.stderr)

    def test_has_all_commands(self):
        def commands(program):
            return re.findall(r"(?m)^  ([a-z][a-z-]+) ", self.call("--help", program=program).out.split("Subcommands:")[1].split("\n\n")[0])

        self.assertEqual(commands(self.mine), commands(AISP))
        self.assertIn("selftest", commands(self.mine))

    def project_with(self, text, *options):
        folder = self.work / "project"
        folder.mkdir()
        (folder / "kernels").mkdir()
        (folder / "CMakeLists.txt").write_text(text)
        return configure(folder, self.prefix, *options, good=False)

    def test_what_the_package_needs_is_said_in_a_sentence(self):
        finished = self.project_with("cmake_minimum_required(VERSION 3.24)\nproject(mine LANGUAGES NONE)\nfind_package(aisp REQUIRED)\n")
        self.assertNotEqual(finished.returncode, 0)
        self.assertIn("aisp needs C++: call project(... LANGUAGES CXX) before find_package(aisp)", " ".join(finished.stderr.split()))

    def test_architectures_that_the_harness_cannot_run_on(self):
        finished = self.project_with((self.project / "CMakeLists.txt").read_text(), "-DAISP_CUDA_ARCHITECTURES=75-real")
        self.assertEqual(finished.returncode, 0, "a folder without pairs is a beginning")
        self.assertRegex(" ".join(finished.stderr.split()), "aisp was built for [0-9a-z;-]+: pairs for 75-real will not run")


if __name__ == "__main__":
    unittest.main()
