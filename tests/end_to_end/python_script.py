# SPDX-License-Identifier: Apache-2.0
"""Scripts that call aisp.bench over functions of the host."""
import os
import pathlib
import subprocess
import sys
import unittest

from harness import AISP, SOURCE, EndToEnd, everything_said, results_log

BUILD = os.environ.get("AISP_BUILD", str(pathlib.Path(AISP).parent))
QUICK = "iterations=5, warmup=1, budget=0.2"
START = """
import aisp, numpy
def inputs(seed):
    return {"x": numpy.random.default_rng(seed).uniform(-1, 1, 1 << 16).astype(numpy.float32)}
def reference(x):
    return 2 * x.astype(numpy.float64)
def double(x):
    return x + x
def twice(x):
    return 2 * x
def bench(optimized, baseline=double, inputs=inputs, reference=reference, **more):
    return aisp.bench("mine", inputs=inputs, baseline=baseline, optimized=optimized, reference=reference, ITERATIONS, **more)
""".replace("ITERATIONS", QUICK)


@unittest.skipIf("AISP_SANITIZED" in os.environ, "Python is not built for the sanitizers")
class PythonScript(EndToEnd):
    def python(self, text, code=0, env=None):
        (self.work / "script.py").write_text(START + text)
        environment = self.environment({"PYTHONPATH": str(SOURCE / "python/src"), "AISP_BUILD": BUILD, **(env or {})})
        done = subprocess.run([sys.executable, "script.py"], cwd=self.work, env=environment, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, code, f"\n{done.stdout}\n{done.stderr}")
        return done

    def result(self):
        folders = list(self.artifacts.iterdir())
        self.assertEqual(len(folders), 1)
        return results_log(folders[0])[-1]

    def caught(self, text, *words, point=""):
        """As a wrong variant, in one line and in the result."""
        done = self.python(f"{text}\naisp.main(measure)", code=1)
        error = done.stderr.splitlines()[-1]
        self.assertTrue(error.startswith(f"aisp: error: python:mine {point}{' ' if point else ''}failed: "), done.stderr)
        result = self.result()
        self.assertEqual(result["status"], "failed")
        for word in words:
            self.assertRegex(everything_said(result), word)
            self.assertRegex(error, word)
