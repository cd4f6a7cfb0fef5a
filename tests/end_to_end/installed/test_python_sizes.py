# SPDX-License-Identifier: Apache-2.0
"""aisp.bench at several sizes, and what it prints and gives: tables, rates, pictures."""
import unittest

import schemas
from harness import AISP, results_log
from python_script import PythonScript


class Python(PythonScript):
    def test_one_run_at_several_sizes(self):
        done = self.python("""
def sized(seed, n, rows):
    return {"x": numpy.random.default_rng(seed).uniform(-1, 1, (rows, n)).astype(numpy.float32)}
result = bench({"all": lambda x: x.sum(axis=1)}, baseline=lambda x: numpy.array([row.sum() for row in x]), inputs=sized,
               reference=lambda x: x.astype(float).sum(axis=1), sizes={"n": [1024, 4096], "rows": 64},
               tolerance=lambda n, rows: aisp.sum_of(n), cost=lambda n, rows: {"flops": n * rows}, run_id="swept", quiet=True)
assert result.passed and len(result.points) == 2
table = result.table()
assert [(row["n"], row["rows"], row["variant"]) for row in table] == [(1024, 64, "baseline"), (1024, 64, "all"), (4096, 64, "baseline"), (4096, 64, "all")]
small, large = result.at(n=1024), result.at(n=4096)
moved = 4 * (4096 * 64 + 64)
assert abs(large.gb_per_s("all") * large.median_ms("all") * 1e6 / moved - 1) < 1e-9
assert abs(large.tflop_per_s("all") * large.median_ms("all") * 1e9 / (4096 * 64) - 1) < 1e-9
assert small.variants["all"]["accuracy"]["limit_relative_l2"] < large.variants["all"]["accuracy"]["limit_relative_l2"]
assert result.pictures["rate"].startswith("<svg") and "4096" in result.pictures["rate"]
assert "<table>" in result._repr_html_() and "<svg" in result._repr_html_()
for wrong in (lambda: result.pair, lambda: result.speedup(), lambda: result.at(n=5), lambda: result.at(rows=64)):
    try: wrong()
    except aisp.Error as error: assert "n=1024, rows=64" in str(error), error
    else: assert False
print(repr(result))
print(result)
""")
        lines = done.stdout.splitlines()
        self.assertEqual(lines[0], "<aisp.Result python:mine at 2 sizes>")
        self.assertRegex(lines[1], r"^ +n +rows +variant +median_ms +gb_per_s +tflop_per_s +speedup +low +high +verdict$")
        self.assertRegex(lines[4], r"^4096 +64 +baseline( +[0-9.e-]+){3}$")
        self.assertEqual(len(lines), 7, "quiet: nothing but what the script printed")
        results = results_log(self.artifacts / "swept")
        self.assertEqual([(result["case"], result["sizes"]) for result in results], [("n_1024", {"n": 1024, "rows": 64}), ("n_4096", {"n": 4096, "rows": 64})])
        for result in results:
            self.assertEqual(schemas.mistakes(result, "result"), [])
        html = self.call("report", "swept", "--html", "-", program=AISP)
        self.assert_code(html, 0)
        self.assertIn("points of python:mine", html.out)

    def test_a_wrong_point_is_named(self):
        self.caught("""
def sized(seed, n):
    return {"x": numpy.random.default_rng(seed).uniform(-1, 1, n).astype(numpy.float32)}
def wrong(x): return 2 * x + (len(x) > 1024)
def measure(): bench({"wrong": wrong}, inputs=sized, sizes={"n": [1024, 2048]})""", "wrong: .*relative L2 error", point="n_2048")

    def test_the_baseline_as_reference(self):
        self.assertEqual(self.python("""
plain = lambda x: numpy.cumsum(x, dtype=x.dtype)
def paired(x): return numpy.cumsum(x.astype(float)).astype(numpy.float32)
result = bench({"paired": paired}, baseline=plain, reference="baseline", tolerance=1e-4, quiet=True)
assert result.variants["paired"]["accuracy"]["relative_l2"] < result.variants["baseline"]["accuracy"]["relative_l2"]
def plain_out(x, out): numpy.add(x, x, out=out)
assert bench({"twice": lambda x, out: numpy.multiply(x, 2, out=out) is None}, baseline=plain_out, outputs=numpy.empty_like, reference="baseline",
             quiet=True).passed
def in_place(x): x *= 2
def shifted(x): x += x
assert bench({"shifted": shifted}, baseline=in_place, updates=["x"], reference="baseline", quiet=True).passed
""").stdout, "")
        self.assertEqual({result["status"] for folder in self.artifacts.iterdir() for result in results_log(folder)}, {"passed"})

    def test_what_is_printed_is_printed_once(self):
        done = self.python("""
result = bench(twice)
print("END")
print(result)
print(repr(result), repr(result.speedup()))
""")
        shown, again = done.stdout.split("END\n")
        self.assertRegex(shown, r"python:mine +twice +[0-9.]+x .*\n  double +[0-9.]+ [um]s  [0-9.]+ GB/s\n  twice +[0-9.]+ [um]s  [0-9.]+ GB/s\n")
        self.assertNotIn("--in-process", shown)
        self.assertRegex(again, r"^variant +median_ms +gb_per_s +speedup +low +high +verdict\ndouble +")
        self.assertRegex(again, r"\n<aisp\.Result python:mine passed: twice [0-9.]+x \[[0-9.]+, [0-9.]+\] [a-z ]+> Speedup\([0-9.]{4,5}x \[")

if __name__ == "__main__":
    unittest.main()
