# SPDX-License-Identifier: Apache-2.0
"""torch-figures without torch, and with one that has no GPU; its work is that of pairs."""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = SOURCE / "scripts/torch-figures"


def run(*words, modules=()):
    """With modules of these names and texts, and no others beside Python's own."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in modules:
            (pathlib.Path(folder) / f"{name}.py").write_text(text)
        return subprocess.run([sys.executable, "-S", str(SCRIPT), *words], capture_output=True, text=True, env={"PYTHONPATH": folder, "PATH": "/usr/bin:/bin"})


NO_GPU = """
class cuda:
    @staticmethod
    def is_available(): return False
class backends:
    class cudnn: benchmark = False
class nn: functional = None
int32 = 0
def manual_seed(seed): pass
def set_default_device(device): pass
def zeros(*_, **__): return None
"""


class TorchFigures(unittest.TestCase):
    def test_without_torch(self):
        ended = run("all")
        self.assertEqual(ended.returncode, 4, ended.stderr)
        self.assertRegex(ended.stderr, r"\Atorch-figures: .*install torch.*\n\Z")

    def test_without_a_gpu(self):
        ended = run("adam_8bit", modules=[("torch", NO_GPU)])
        self.assertEqual(ended.returncode, 4, ended.stderr)
        self.assertRegex(ended.stderr, r"\Atorch-figures: PyTorch sees no GPU; --tiny .*\n\Z")

    def test_a_piece_of_work_that_torch_cannot_do_has_the_reason_in_its_row(self):
        ended = run("vector_search", "--tiny", modules=[("torch", NO_GPU + "__version__ = '0'\nclass version: cuda = None\nclass compiler:\n    def reset(): pass\n")])
        self.assertEqual(ended.returncode, 4, ended.stderr)
        self.assertRegex(ended.stdout, r"(?m)^\| ch20:vector_search \|.*\| AttributeError: .*randn.* \|$")

    def test_work_that_is_unknown(self):
        ended = run("gemm")
        self.assertEqual(ended.returncode, 2)
        self.assertIn("invalid choice: 'gemm'", ended.stderr)

    def test_work_is_that_of_pairs(self):
        works = re.findall(r"chapter(\d\d)\.(\w+)", SCRIPT.read_text())
        self.assertGreater(len(works), 10)
        for chapter, name in works:
            self.assertTrue((SOURCE / f"chapters/ch{chapter}/{name}.cu").is_file(), name)


if __name__ == "__main__":
    unittest.main()
