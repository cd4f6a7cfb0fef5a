# SPDX-License-Identifier: Apache-2.0
"""aisp.bench over PyTorch, Triton, CuPy and Numba on a GPU: equal kernels stay equal, cheats are caught, times are those of C++."""
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

import schemas
from harness import AISP, FIXTURES, SOURCE, EndToEnd, everything_said, results_log, variant

BUILD = os.environ.get("AISP_BUILD", str(pathlib.Path(AISP).parent))
START = """
import aisp, torch
N = 1 << 24
def inputs(seed):
    return {"x": torch.rand(N, device="cuda", generator=torch.Generator("cuda").manual_seed(seed % 2**63)) - 0.5}
def reference(x):
    return 2 * x.double()
def double(x):
    return x + x
def bench(optimized, baseline=double, inputs=inputs, reference=reference, **more):
    return aisp.bench("mine", inputs=inputs, baseline=baseline, optimized=optimized, reference=reference, **more)
"""


class PythonOnGpu(EndToEnd):
    library = "torch"

    def setUp(self):
        super().setUp()
        if not json.loads(self.call("doctor", "--json", program=AISP).out)["machine"]["gpus"]:
            self.skipTest("no GPU")
        if importlib.util.find_spec(self.library) is None:
            self.skipTest(f"{sys.executable} has no {self.library}")

    def python(self, text, code=0, start=START):
        (self.work / "script.py").write_text(start + text)
        environment = self.environment({"PYTHONPATH": str(SOURCE / "python/src"), "AISP_BUILD": BUILD})
        done = subprocess.run([sys.executable, "script.py"], cwd=self.work, env=environment, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, code, f"\n{done.stdout}\n{done.stderr}")
        return done

    def result(self):
        return results_log(max(self.artifacts.iterdir(), key=lambda folder: folder.stat().st_mtime))[-1]

    def caught(self, text, words):
        done = self.python(f"{text}\naisp.main(measure)", code=1)
        result = self.result()
        self.assertEqual(result["status"], "failed")
        self.assertRegex(everything_said(result), words, done.stderr)


class Torch(PythonOnGpu):
    def test_equal_functions_are_equal(self):
        self.python("""
result = bench({"same": lambda x: x + x})
assert result.passed
assert result.speedup().verdict == "cannot_tell", result.speedup()
print(result)
""")
        result = self.result()
        self.assertEqual((result["device"], result["start"], result["cache"]), ("gpu", "released", "cold"))
        self.assertEqual(schemas.mistakes(result, "result"), [])
        self.assertEqual(result["warnings"], [])

    def test_functions_that_write_are_as_fast_as_those_that_return(self):
        # Far above what L2 holds: how much of it a buffer meets there differs between processes.
        self.python("""
N = 1 << 26
a = bench({"returned": lambda x: x * 2}, run_id="returned").median_ms("returned")
b = bench({"written": lambda x, out: torch.mul(x, 2, out=out) is None}, baseline=lambda x, out: torch.add(x, x, out=out) is None,
          outputs=torch.empty_like, run_id="written").median_ms("written")
assert abs(a / b - 1) < 0.01, (a, b)
""")

    def test_bf16_and_several_outputs(self):
        self.python("""
result = bench({"twice": lambda x: (x * 2, x * x)}, baseline=lambda x: (x + x, x ** 2), cache="cold",
               inputs=lambda seed: torch.rand(4096, 512, device="cuda", generator=torch.Generator("cuda").manual_seed(seed % 2**63)).bfloat16(),
               reference=lambda x: (2 * x.double(), x.double() ** 2))
assert result.passed
""")

    def test_results_that_were_kept(self):
        self.caught("""
kept = {}
def lazy(x):
    if "y" not in kept: kept["y"] = 2 * x
    return kept["y"]
def measure(): bench({"lazy": lazy})""", "lazy")
        self.caught("""
kept = {}
def lazy(x):
    key = x.sum().item()
    if key not in kept: kept[key] = 2 * x
    return kept[key]
def measure(): bench({"lazy": lazy}, start="immediate")""", "lazy")
        self.caught("""
kept = {}
def lazy(x, out):
    if "y" not in kept: kept["y"] = 2 * x
    out.copy_(kept["y"])
def measure(): bench({"lazy": lazy}, baseline=lambda x, out: torch.add(x, x, out=out) is None, outputs=torch.empty_like)""", "lazy")

    def test_work_on_another_stream(self):
        self.caught("""
side = torch.cuda.Stream()
def aside(x, out):
    with torch.cuda.stream(side):
        for _ in range(20): torch.mul(x, 2, out=out)
def measure(): bench({"aside": aside}, baseline=lambda x, out: torch.add(x, x, out=out) is None, outputs=torch.empty_like)""",
                    "stream|not written|after|held back")

    def test_fewer_bits(self):
        self.caught("def measure(): bench({'half': lambda x: (x.half() * 2.0009765625).float()})", "half: .*relative L2 error")

    def test_a_function_that_waits_for_the_gpu_is_measured_from_an_immediate_start(self):
        self.python("""
def waits(x):
    y = x * 2
    torch.cuda.synchronize()
    return y
assert bench({"waits": waits}).passed
""")
        self.assertEqual(self.result()["start"], "immediate")

    def test_a_compiled_function(self):
        self.python("""
compiled = torch.compile(lambda x: torch.softmax(x.view(4096, -1) * 2, -1))
result = bench({"compiled": compiled}, baseline=lambda x: torch.softmax(x.view(4096, -1) * 2, -1), tolerance=aisp.sum_of(4096),
               reference=lambda x: torch.softmax(x.double().view(4096, -1) * 2, -1), bound="memory")
assert result.passed
print(result)
""")


class Triton(PythonOnGpu):
    library = "triton"

    def test_a_kernel_of_triton(self):
        done = self.python("""
import triton, triton.language as tl
@triton.jit
def double_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)
def kernel(x, out):
    double_kernel[(triton.cdiv(N, 1024),)](x, out, N, BLOCK=1024)
result = bench({"triton": kernel}, baseline=lambda x, out: torch.add(x, x, out=out) is None, outputs=torch.empty_like)
assert result.passed and 0.9 < result.speedup().value < 1.2, result.speedup()
""")
        self.assertIn("python:mine", done.stdout)

    def test_the_listing_of_the_page(self):
        listing = re.search("```python\n(import aisp, torch, triton\n.*?)```", (SOURCE / "docs/python.md").read_text(), re.DOTALL)[1]
        self.assertIn("python:double", self.python(listing, start="").stdout)
        self.assertEqual((self.result()["device"], self.result()["status"]), ("gpu", "passed"))


class Cupy(PythonOnGpu):
    library = "cupy"

    def test_a_kernel_takes_the_time_that_it_takes_in_a_pair_of_c_plus_plus(self):
        self.python('''
import aisp, cupy
N = 1 << 26
source = r"""
extern "C" __global__ void scalar(const float* in, float* out) {
  const size_t i = size_t{blockIdx.x} * 256 + threadIdx.x;
  out[i] = 2 * in[i];
}
extern "C" __global__ void vectorized(const float4* in, float4* out) {
  const size_t i = size_t{blockIdx.x} * 256 + threadIdx.x;
  const float4 x = in[i];
  out[i] = make_float4(2 * x.x, 2 * x.y, 2 * x.z, 2 * x.w);
}"""
module = cupy.RawModule(code=source, options=("-std=c++17",))
scalar, vectorized = module.get_function("scalar"), module.get_function("vectorized")
aisp.bench("mine", inputs=lambda seed: cupy.random.default_rng(seed % 2**32).random(N, dtype=cupy.float32) - 0.5, outputs=cupy.empty_like,
           baseline=lambda x, out: scalar((N // 256,), (256,), (x, out)),
           optimized={"vectorized": lambda x, out: vectorized((N // 1024,), (256,), (x, out))},
           reference=lambda x: 2 * x.astype(cupy.float64), tolerance="exact")
''', start="")
        python = self.result()
        self.assert_code(self.call("run", "-t", "starter:gpu", program=FIXTURES), 0)
        native = self.result()
        self.assertEqual(native["target"], "starter:gpu")
        for ours, theirs in (("<lambda>", "scalar"), ("vectorized", "vectorized")):
            ours = python["variants"][0]["name"] if ours == "<lambda>" else ours
            ratio = variant(python, ours)["timing"]["median_ms"] / variant(native, theirs)["timing"]["median_ms"]
            self.assertLess(abs(ratio - 1), 0.01, f"{theirs}: {ratio}")


class Numba(PythonOnGpu):
    library = "numba"

    def setUp(self):
        super().setUp()
        trial = "from numba import cuda; import numpy; cuda.jit(lambda x: None)[1, 1](cuda.to_device(numpy.zeros(1)))"
        done = subprocess.run([sys.executable, "-c", trial], capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            self.skipTest(f"numba itself fails here: {done.stderr.splitlines()[-1]}")

    def test_a_kernel_of_numba_on_the_current_stream(self):
        self.python("""
import aisp, numpy
from numba import cuda
@cuda.jit
def kernel(x, out):
    i = cuda.grid(1)
    if i < x.size: out[i] = 2 * x[i]
def launch(x, out):
    kernel[65536, 256, cuda.external_stream(aisp.current_stream())](x, out)
N = 1 << 24
result = aisp.bench("mine", inputs=lambda seed: cuda.to_device(numpy.random.default_rng(seed).random(N, dtype=numpy.float32)),
                    outputs=lambda x: cuda.device_array_like(x), baseline=launch, optimized={"again": launch},
                    reference=lambda x: 2 * x.copy_to_host().astype(float))
assert result.passed
""", start="")


if __name__ == "__main__":
    unittest.main()
