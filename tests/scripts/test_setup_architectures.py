# SPDX-License-Identifier: Apache-2.0
"""Which GPU architectures setup.sh builds for, with a nvidia-smi that makes GPUs up; and what follows the build on a machine with one."""
import os
import pathlib
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("AISP_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
NVIDIA_SMI = """#!/bin/sh
case $* in
  *compute_cap*) printf '%s' ;;
  *) exit 1 ;;
esac
"""


class Architectures(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.bin = pathlib.Path(folder.name)

    def setup(self, *arguments, capabilities=None):
        program = self.bin / "nvidia-smi"
        program.write_text("#!/bin/sh\nexit 9\n" if capabilities is None else NVIDIA_SMI % "".join(f"{one}\\n" for one in capabilities))
        program.chmod(0o755)
        return subprocess.run([SOURCE / "setup.sh", "--dry-run", *arguments], env={**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}"},
                              capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False)

    def chosen(self, *arguments, **keywords):
        result = self.setup(*arguments, **keywords)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def test_the_gpus_that_are_here(self):
        for capabilities, wanted in ((["9.0"], "90a-real"), (["8.0", "8.0"], "80-real"), (["12.0", "8.9"], "89-real;120a-real"), (["10.3"], "103a-real")):
            with self.subTest(capabilities):
                self.assertIn(f"GPU architectures: {wanted}, of the GPUs that are here\n", self.chosen(capabilities=capabilities))

    def test_without_a_gpu_that_pairs_run_on_the_choice_is_said(self):
        for capabilities in (None, ["7.5"], ["[N/A]"]):
            with self.subTest(capabilities):
                said = self.chosen(capabilities=capabilities)
                self.assertIn("GPU architectures: 90a-real, because no GPU of compute capability 8.0 or newer is visible; choose others with "
                              "--architectures", said)

    def test_the_user_decides(self):
        said = self.chosen("--architectures", "80;90a", capabilities=["12.0"])
        self.assertIn("-DAISP_CUDA_ARCHITECTURES=80\\;90a", said)
        self.assertNotIn("120a", said)
        for wrong in ("hopper", "90a,80", "9.0"):
            result = self.setup(f"--architectures={wrong}")
            self.assertEqual(result.returncode, 2)
            self.assertIn(f"not '{wrong}'", result.stderr)

    def test_tests_are_of_the_architecture_that_results_are_recorded_on(self):
        self.assertNotIn("-DAISP_CUDA_ARCHITECTURES", self.chosen("--test", capabilities=["8.0"]))

    def test_ceilings_are_measured_at_the_end_where_a_gpu_is(self):
        self.assertIn("would run: build/release/aisp peak\n", self.chosen(capabilities=["9.0"]))
        self.assertNotIn("aisp peak", self.chosen())

    def test_packages(self):
        said = self.chosen("--package", capabilities=["9.0"])
        self.assertIn("would run: scripts/package --build build/packages --out packages\n", said)
        self.assertIn("cmake --preset packages", said)
        self.assertNotIn("-DAISP_CUDA_ARCHITECTURES", said)
        self.assertIn("-DAISP_CUDA_ARCHITECTURES=80-real", self.chosen("--package", "--architectures", "80-real"))


if __name__ == "__main__":
    unittest.main()
