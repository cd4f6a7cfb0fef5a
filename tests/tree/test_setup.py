# SPDX-License-Identifier: Apache-2.0
"""setup.sh as a user meets it, without changing the machine."""
import os
import re
import shutil
import unittest

from tree import SOURCE, TemporaryTree, run

SETUP = SOURCE / "setup.sh"


def setup(*arguments, **environment):
    return run(SETUP, *arguments, env={**os.environ, **environment}, stdin=-3)


class Workflow(unittest.TestCase):
    def test_every_change_is_tested_on_both_distributions(self):
        workflow = (SOURCE / ".github/workflows/ci.yml").read_text()
        self.assertRegex(workflow, r"(?m)^  pull_request:$")
        self.assertRegex(workflow, r"(?m)^      - run: \.ci/run$")
        for distribution in re.search(r"^Debian (\d+) or Ubuntu ([\d.]+)", SETUP.read_text(), re.M).groups():
            self.assertRegex(workflow, rf'"(debian|ubuntu):{re.escape(distribution)}"')


class Setup(unittest.TestCase):
    def test_help(self):
        result = setup("--help")
        self.assertEqual(result.returncode, 0)
        for option in ("--test", "--nightly", "--asan", "--cuda", "--with-driver", "--with-nsight", "--jobs", "--dry-run", "--chapters", "--cutlass"):
            self.assertIn(option, result.stdout)

    def test_wrong_usage_is_one_line_and_status_2(self):
        for arguments, words in ((["--bogus"], "unknown option '--bogus'"), (["--cuda", "new"], "not 'new'"), (["--cuda"], "needs a value"),
                                 (["--jobs", "many"], "not 'many'"), (["--chapters"], "needs a value"), (["--test", "--chapters", "ch01"], "without --test")):
            with self.subTest(arguments):
                result = setup(*arguments)
                self.assertEqual(result.returncode, 2)
                self.assertIn(words, result.stderr)
                self.assertEqual(len(result.stderr.splitlines()), 1)
                self.assertEqual(result.stdout, "")

    def test_dry_run_says_what_it_would_do_and_does_nothing(self):
        result = setup("--dry-run", "--jobs", "3", "--cuda", "wheels")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("would run: cmake --build build/release", result.stdout)
        self.assertIn("--parallel 3", result.stdout)
        self.assertIn("verify", result.stdout)
        self.assertFalse((SOURCE / ".cuda.partial").exists())

    def test_chapters_build_these_pairs_and_no_library_of_cutlass(self):
        result = setup("--dry-run", "--chapters", "ch01,ch05:mmap")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"(?m)^Pairs: \d+ of \d+, those of ch01,ch05:mmap$")
        self.assertIn("-DAISP_PAIRS=ch01\\,ch05:mmap", result.stdout)
        self.assertRegex(result.stdout, r"(?m)cmake --build build/release .*--target aisp$")
        self.assertNotIn("aisp_cutlass", result.stdout)
        self.assertNotIn("aisp_cutlass", setup("--dry-run", "--test").stdout)

    def test_chapters_that_do_not_exist_are_one_line_that_names_what_does(self):
        for given, words in (("ch99", "no pair is called 'ch99'; there are pairs in ch01, ch02"), ("ch01,ch05:nmap", "no pair is called 'ch05:nmap'"),
                             ("", "the list is empty; there are pairs in ch01"), (",", "the list is empty")):
            with self.subTest(given):
                result = setup("--dry-run", "--chapters", given)
                self.assertEqual(result.returncode, 2)
                self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
                self.assertIn(words, result.stderr)
                self.assertNotIn("would run", result.stdout)

    def test_the_library_of_cutlass_is_built_last_or_alone(self):
        whole = setup("--dry-run").stdout
        self.assertLess(whole.index("cmake --build build/release --parallel"), whole.index("--target aisp_cutlass"))
        alone = setup("--dry-run", "--cutlass").stdout
        self.assertEqual(alone.count("cmake --build"), 1)
        self.assertIn("--target aisp_cutlass", alone)

    def test_environment_hides_the_machines_toolkit(self):
        result = setup("--dry-run", AISP_IGNORE_SYSTEM_CUDA="1")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(f"CUDA: {SOURCE}/.cuda\n", result.stdout)

    def test_dry_run_of_driver_and_nsight(self):
        result = setup("--dry-run", "--with-driver", "--with-nsight")
        if "not for" in result.stderr:
            self.skipTest("not Debian 12 or Ubuntu 24.04")
        self.assertEqual(result.returncode, 0, result.stderr)
        if not shutil.which("nvidia-smi"):
            self.assertIn("nvidia-open", result.stdout)
            self.assertIn("reboot", result.stdout)
        if not shutil.which("nsys"):
            self.assertIn("cuda-nsight-systems", result.stdout)


class Toolkit(TemporaryTree):
    def fake_toolkit(self, version):
        nvcc = self.write("cuda/bin/nvcc", f"#!/bin/sh\necho 'Cuda compilation tools, release {version}, V{version}.1'\n")
        nvcc.chmod(0o755)
        return str(self.root / "cuda")

    def test_toolkit_that_is_too_old_is_named_and_not_used(self):
        home = self.fake_toolkit("12.8")
        result = setup("--dry-run", CUDA_HOME=home)
        self.assertIn(f"CUDA_HOME={home} is not used: it is CUDA 12.8, older than 13.0", result.stdout)
        self.assertNotIn(f"CUDA: {home}\n", result.stdout)

    def test_toolkit_without_headers_is_named_and_not_used(self):
        home = self.fake_toolkit("13.0")
        result = setup("--dry-run", CUDA_HOME=home)
        self.assertIn("it has no include/cuda_runtime.h", result.stdout)


if __name__ == "__main__":
    unittest.main()
