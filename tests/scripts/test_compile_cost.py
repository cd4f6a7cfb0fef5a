# SPDX-License-Identifier: Apache-2.0
"""compile-cost with made-up compilers and a made-up build."""
import subprocess
import sys
import unittest

from machine import SOURCE, Machine

SCRIPT = SOURCE / "scripts/compile-cost"
LOG = """# ninja log v5
0\t9000\t1\tCMakeFiles/aisp_core.dir/src/cli/output.cpp.o\t1
0\t2000\t2\tCMakeFiles/aisp_core.dir/src/cli/output.cpp.o\t1
0\t3000\t1\tCMakeFiles/aisp_core.dir/generated/batches/core_cli_0.cpp.o\t2
100\t12100\t1\tCMakeFiles/aisp_pairs.dir/chapters/ch07/transpose.cu.o\t3
0\t4000\t1\tCMakeFiles/aisp_pairs.dir/chapters/ch01/ilp_basic.cpp.o\t4
0\t90000\t1\tCMakeFiles/aisp_cutlass.dir/src/libraries/cutlass_bf16.cu.o\t5
0\t5000\t1\tCMakeFiles/aisp_selftest.dir/selftest/broken/hangs.cpp.o\t6
0\t6000\t1\ttests/CMakeFiles/test_cli.dir/cli/output_test.cpp.o\t7
0\t1500\t1\taisp\t8
0\t500\t1\tgenerated/aisp_code.cpp\t9
"""
# Computes a while, for the pair's header as long as a test asks for.
COMPILER = """#!{python}
import pathlib, sys, time
source = next(pathlib.Path(word) for word in sys.argv if word.endswith("one.cu"))
until = time.process_time() + (PAIR if "aisp/pair.hpp" in source.read_text() else 0.2)
while time.process_time() < until: pass
"""


class CompileCost(Machine):
    def cost(self, *arguments, pair=0.25):
        build = self.work / "build"
        build.mkdir(exist_ok=True)
        self.tool("nvcc", COMPILER.replace("{python}", sys.executable).replace("PAIR", str(pair)))
        (build / "CMakeCache.txt").write_text(f"CMAKE_CUDA_COMPILER:STRING={self.bin}/nvcc\n")
        (build / ".ninja_log").write_text(LOG)
        return subprocess.run([sys.executable, SCRIPT, "--build", build, *arguments], capture_output=True, text=True, check=False)

    def test_seconds_by_kind_are_those_of_each_outputs_last_build(self):
        result = self.cost("log")
        self.assertEqual(result.returncode, 0, result.stderr)
        rows = [line.split(None, 3) for line in result.stdout.splitlines()]
        self.assertEqual({row[3]: (row[0], row[2]) for row in rows[:8]},
                         {"CUTLASS": ("90", "1"), "pairs .cu": ("12", "1"), "tests": ("6", "1"), "selftest": ("5", "1"), "src": ("5", "2"),
                          "pairs .cpp": ("4", "1"), "links": ("2", "1"), "other steps": ("0", "1")})
        self.assertEqual(rows[8], ["90.0", "s", "CMakeFiles/aisp_cutlass.dir/src/libraries/cutlass_bf16.cu.o"])

    def test_a_pair_may_cost_so_much_more_than_cuda(self):
        result = self.cost("pair")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertRegex(result.stdout, r"^<aisp/pair.hpp> \d\.\d s, <cuda_runtime.h> \d\.\d s: 1\.\d\d times \(limit 1\.7\)$")
        self.assertEqual(self.cost("pair", pair=0.8).returncode, 1)

    def test_wrong_usage_is_one_line(self):
        for arguments, words in ((["frob"], "there is no part 'frob'"), (["log", "--build", self.work / "none"], ".ninja_log is missing"),
                                 (["pair", "--build", self.work / "none"], "names no nvcc")):
            with self.subTest(words):
                result = self.cost(*arguments)
                self.assertEqual((result.returncode, len(result.stderr.splitlines())), (2, 1), result.stderr)
                self.assertIn(words, result.stderr)


if __name__ == "__main__":
    unittest.main()
