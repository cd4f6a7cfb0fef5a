# SPDX-License-Identifier: Apache-2.0
"""The header that a pair's author includes stays cheap to compile: every pair pays for it. scripts/compile-cost measures the
seconds."""
import shutil
import unittest

from tree import NVCC, SOURCE, TemporaryTree, run

MOST_LINES = 55_000  # of which <cuda_runtime.h> alone is 40,000 with CUDA 13.0


class PairHeader(TemporaryTree):
    @unittest.skipUnless(shutil.which(NVCC), "nvcc is not installed")
    def test_lines_that_the_compiler_reads(self):
        source = self.write("pair.cu", "#include <aisp/pair.hpp>\n")
        preprocessed = run(NVCC, "-std=c++20", f"-I{SOURCE / 'include'}", "-E", source)
        self.assertEqual(preprocessed.returncode, 0, preprocessed.stderr)
        lines = preprocessed.stdout.count("\n")
        self.assertLessEqual(lines, MOST_LINES, "<aisp/pair.hpp> includes more than before; leave out what a pair can include itself")


if __name__ == "__main__":
    unittest.main()
