# SPDX-License-Identifier: Apache-2.0
"""scripts/tcgen05-probe compiles its program alone, and says what is missing."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("AISP_SOURCE", pathlib.Path(__file__).resolve().parents[2]))


class Probe(unittest.TestCase):
    def probe(self, *arguments, **environment):
        return subprocess.run([SOURCE / "scripts/tcgen05-probe", *arguments], capture_output=True, text=True, timeout=400, check=False,
                              env={**os.environ, **environment})

    def compiler(self, work, script):
        """A toolkit whose nvcc is this script."""
        home = pathlib.Path(work, "cuda")
        (home / "bin").mkdir(parents=True)
        nvcc = home / "bin/nvcc"
        nvcc.write_text("#!/bin/sh\nif [ \"$1\" = --version ]; then echo 'release 13.0, V13.0.1'; exit 0; fi\n" + script)
        nvcc.chmod(0o755)
        return str(home)

    @unittest.skipIf(shutil.which("nvcc") is None, "no nvcc")
    def test_it_compiles_and_runs_or_names_what_is_missing(self):
        with tempfile.TemporaryDirectory() as work:
            built = self.probe("--architectures", "100a", "--output", work + "/probe", "--build-only")
            self.assertEqual(built.returncode, 0, built.stderr)
            self.assertIn("compiles it for 100a", built.stderr)
            finished = subprocess.run([work + "/probe"], capture_output=True, text=True, timeout=60, check=False)
        self.assertIn(finished.returncode, (0, 4), finished.stdout)
        self.assertRegex(finished.stdout, "no GPU|no tcgen05|tcgen05 works")

    def test_a_compiler_that_refuses_is_named_with_what_it_said(self):
        with tempfile.TemporaryDirectory() as work:
            finished = self.probe(CUDA_HOME=self.compiler(work, "echo 'not supported on .target' ; exit 1\n"))
        self.assertEqual(finished.returncode, 4)
        self.assertIn("not supported on .target", finished.stderr)
        self.assertIn("nvcc 13.0 does not compile it", finished.stderr.splitlines()[-1])

    def test_targets_without_it_are_refused(self):
        finished = self.probe("--architectures", "121a")
        self.assertEqual(finished.returncode, 2)
        self.assertIn("'121a' has no tcgen05", finished.stderr)


if __name__ == "__main__":
    unittest.main()
