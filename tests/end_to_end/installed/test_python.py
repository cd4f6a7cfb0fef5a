# SPDX-License-Identifier: Apache-2.0
"""aisp.bench over functions of the host: what it measures, what it catches, and that its runs are read like any others."""
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

import schemas
from harness import AISP, SOURCE, everything_said
from python_script import PythonScript


class Python(PythonScript):
    def test_a_run_like_any_other(self):
        done = self.python("""
result = bench({"twice": twice, "added": lambda x: x + x}, libraries={"numpy": lambda x: numpy.multiply(x, 2)}, lesson="twice",
               teaches="two ways to double", run_id="mine")
assert result.passed and result.skipped is None and result.status == 0
assert result.speedup().low <= result.speedup("twice").value <= result.speedup().high
assert set(result.variants) == {"double", "twice", "added", "numpy"}, result.variants
assert result.median_ms("twice") > 0
frames = aisp.load("mine")
assert list(frames.variants.variant) == ["double", "twice", "added", "numpy"]
assert len(frames.samples) >= 4 * 5
""")
        self.assertRegex(done.stdout, r"python:mine +twice +[0-9.]+x")
        result = self.result()
        self.assertEqual((result["target"], result["device"], result["lesson"], result["teaches"]), ("python:mine", "host", "twice", "two ways to double"))
        self.assertRegex(result["source_digest"], "^[0-9a-f]{64}$")
        self.assertGreaterEqual(result["inputs_drawn"], 1)
        self.assertEqual(schemas.mistakes(result, "result"), [])
        manifest = json.loads((self.artifacts / "mine/manifest.json").read_text())
        self.assertEqual(manifest["command_line"], ["python", "script.py"])
        self.assertEqual(schemas.mistakes(manifest, "manifest"), [])
        for command in (["report", "mine", "--html", "-"], ["compare", "mine", "mine"]):
            read = self.call(*command, program=AISP)
            self.assert_code(read, 0)
            self.assertIn("python:mine", read.out)
        self.assert_code(self.call("analyze", "mine", "--expectations-dir", str(SOURCE / "expectations"), program=AISP), 5)

    def test_functions_that_write_given_outputs(self):
        self.python("""
result = bench(lambda x, total, square: (numpy.multiply(x, 2, out=total), numpy.multiply(x, x, out=square), None)[-1],
               baseline=lambda x, total, square: (numpy.add(x, x, out=total), numpy.multiply(x, x, out=square), None)[-1],
               outputs=lambda x: {"total": numpy.empty_like(x), "square": numpy.empty_like(x)},
               reference=lambda x: (2 * x.astype(float), x.astype(float) ** 2))
assert result.passed
""")

    def test_inputs_that_are_changed_in_place_and_constants(self):
        self.python("""
def steps(function):
    return lambda x, w: function(x, w)
def plain(x, w): x *= w
def split(x, w): numpy.multiply(x, w, out=x)
result = bench({"split": aisp.Variant(split, prepare=lambda x, w: None)}, baseline=plain, updates=["x"],
               constants=lambda seed: {"w": numpy.random.default_rng(seed).uniform(1, 2, 1 << 16).astype(numpy.float32)},
               reference=lambda x, w: x.astype(float) * w.astype(float))
assert result.passed
""")

    def test_a_result_that_was_kept(self):
        self.caught("""
kept = {}
def lazy(x):
    if "y" not in kept: kept["y"] = 2 * x
    return kept["y"]
def measure(): bench({"lazy": lazy})""", "lazy")

    def test_a_result_that_was_kept_in_an_array_of_an_unknown_library(self):
        library = """
class Array:
    def __init__(self, data): self.data, self.__array_interface__ = data, data.__array_interface__
"""
        self.caught(library + """
kept = {}
def lazy(x):
    if "y" not in kept: kept["y"] = Array(2 * x)
    return kept["y"]
def measure(): bench({"lazy": lazy}, baseline=lambda x: Array(x + x))""", "lazy returned memory that it keeps, as a result that it handed out before")
        self.artifacts.rename(self.work / "first")
        self.python(library + "assert bench(lambda x: Array(2 * x), baseline=lambda x: Array(x + x)).passed")

    def test_a_result_that_was_kept_for_its_inputs(self):
        self.caught("""
kept = {}
def lazy(x):
    key = hash(x.tobytes())
    if key not in kept: kept[key] = 2 * x
    return kept[key]
def measure(): bench({"lazy": lazy})""", "lazy")

    def test_a_result_that_was_kept_and_is_written_again(self):
        self.caught("""
kept = {}
def lazy(x, out):
    if "y" not in kept: kept["y"] = 2 * x
    out[:] = kept["y"]
def measure(): bench({"lazy": lazy}, baseline=lambda x, out: numpy.add(x, x, out=out) is None, outputs=numpy.empty_like)""", "lazy")

    def test_fewer_bits(self):
        self.caught("""
def measure(): bench({"half": lambda x: (x.astype(numpy.float16) * numpy.float16(2)).astype(numpy.float32)})""", "half: .*relative L2 error")

    def test_a_part_that_was_left_out(self):
        self.caught("""
def most(x, out): numpy.multiply(x[:-1], 2, out=out[:-1])
def measure(): bench({"most": most}, baseline=lambda x, out: numpy.add(x, x, out=out) is None, outputs=numpy.empty_like)""",
                    "most: 1 of 65536 elements of output were not written")

    def test_an_input_that_was_modified(self):
        self.caught("""
def spoil(x):
    y = 2 * x
    x[0] = 0
    return y
def measure(): bench({"spoil": spoil})""", "an input was modified")

    def test_an_input_that_was_returned(self):
        self.caught("""
def measure(): bench({"same": lambda x: x}, baseline=lambda x: x + 0, reference=lambda x: x)""", "same: .*lies in an input")

    def test_what_a_function_raises(self):
        self.caught("""
def bad(x): raise KeyError("no such\\nthing")
def measure(): bench({"bad": bad})""", r"KeyError: .no such.nthing.")
        done = self.python("""
def bad(x): raise KeyError("deep inside")
try: bench({"bad": bad}, quiet=True)
except aisp.Failed as error:
    assert isinstance(error.__cause__, KeyError), error.__cause__
    assert error.result.pair["status"] == "failed"
    print("caught")
""")
        self.assertEqual(done.stdout, "caught\n")

    def test_another_shape_or_type(self):
        self.caught("def measure(): bench({'short': lambda x: (2 * x)[:-1].copy()})", r"short is <f4 \[65535\] on the host; it was <f4 \[65536\]")
        self.artifacts.rename(self.work / "first")
        self.caught("def measure(): bench({'wide': lambda x: 2 * x.astype(float)})", "wide is <f8")
        self.artifacts.rename(self.work / "second")
        self.caught("def measure(): bench({'strided': lambda x: numpy.repeat(2 * x, 2)[::2]})", "strided is strided; make it contiguous")

    def test_an_interrupt_is_one(self):
        done = self.python("""
def stop(x): raise KeyboardInterrupt
try: bench({"stop": stop}, quiet=True)
except KeyboardInterrupt: print("stopped")
""")
        self.assertEqual(done.stdout, "stopped\n")

    def test_what_is_declared_wrongly_is_one_line(self):
        for call, words in (
                ("bench({})", "at least one optimized function"),
                ("bench({'Twice': twice})", "among its variants is 'Twice'"),
                ("bench({'double': twice})", "two of its variants are called 'double'"),
                ("bench(twice, lesson='other')", ".lesson is 'other'"),
                ("bench(3)", "must be a function or an aisp.Variant"),
                ("bench(twice, tolerance='close')", "tolerance is 'close'"),
                ("bench(twice, tolerance=0.5)", "limits relative L2 to 0.5, which a wrong result would keep"),
                ("bench(twice, cache='warm')", "cache is 'warm'; it is one of cold, hot"),
                ("bench(twice, cost={'math': 'fp3'})", "math is 'fp3'; it is one of fp64"),
                ("bench(twice, roundz=3)", "unknown setting 'roundz'"),
                ("bench(twice, gpus='0')", "is for pairs of the command aisp"), ("bench(twice, size='n=3')", "; give sizes={"),
                ("bench(twice, seed='x')", "seed 'x' must be a whole number"),
                ("bench(twice, sizes=5)", "it is a dict of lists"), ("bench(twice, sizes={'n': []})", "the size n is []"),
                ("bench(twice, sizes={'n': [1, 1]})", "each once"), ("bench(twice, sizes={'n': ['a']})", "whole numbers from 1"),
                ("bench(twice, sizes={'N': [1]})", "lower case"), ("bench(twice, sizes={'n': range(1, 300)})", "256 is the most"),
                ("bench(twice, sizes={c: [1] for c in 'abcdefghi'}, inputs=lambda seed, **sizes: inputs(seed))", "there are 9 sizes; 8 is the most"),
                ("bench(twice, reference='other')", "stands for the baseline"),
                ("bench(twice, inputs=7)", "inputs and reference are functions"),
                ("bench(twice, inputs=lambda seed: [])", "inputs(seed) gave nothing"),
                ("bench(twice, updates=['z'])", "there is no input 'z'; they are x"),
                ("bench(twice, baseline=lambda x: None)", "returned nothing; return the results, or give outputs="),
                ("bench({f'a{n}': twice for n in range(9)}, lesson='a0')", "8 is the most"),
                *((f"aisp.bench({name!r}, inputs=inputs, baseline=double, optimized=twice, reference=reference)", f"its name is '{name}'")
                  for name in ("../../../../x", "", "a b", "A", "<script>", "a:b")),
                ("aisp.bench(None, inputs=inputs, baseline=double, optimized=twice, reference=reference)", "the name is None; it must be a string"),
                ("bench(twice, group='../x')", "its group is '../x'"), ("bench(twice, group=5)", "the group is 5; it must be a string"),
                ("bench(twice, teaches=5)", "the teaches is 5; it must be a string"),
                ("bench(twice, tolerance=float('nan'))", "tolerance is nan; it is"), ("bench(twice, tolerance=-1)", "tolerance is -1; it is"),
                ("bench(twice, cost={'bytes': float('nan')})", "the cost 'bytes' is nan; it must be a number from 0 on"),
                ("bench(twice, cost={'math': 5})", "the cost 'math' is 5; it must be a string"),
                ("bench(twice, cost={'byts': 5})", "there is no cost 'byts'; they are math, bytes, "),
                ("bench(twice, artifacts_dir='a\\0b')", "holds a NUL character"),
                ("aisp.load(None)", "a folder or a name, not None"), ("aisp.load(['a', 'b'])", "a folder or a name, not ['a', 'b']")):
            with self.subTest(call):
                done = self.python(f"aisp.main(lambda: {call})", code=2)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                self.assertIn(words, done.stderr)
                self.assertFalse(self.artifacts.exists())

    def test_what_aisp_new_writes_passes(self):
        written = self.call("new", "row_sums", "--python", program=AISP)
        self.assert_code(written, 0)
        told = re.search(r"^Next: (.*)$", written.out, re.M)[1]
        self.assertRegex(told, r"^PYTHONPATH=/\S+/python/src AISP_BUILD=\S+ python3 row_sums\.py$")
        text = (self.work / "row_sums.py").read_text()
        (self.work / "row_sums.py").write_text(text.replace("ROWS, COLUMNS = 512", "ROWS, COLUMNS = 64"))
        environment = {**self.environment(), "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", "-c", told], cwd=self.work, env=environment, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("python:row_sums", done.stdout)
        self.assert_code(refused := self.call("new", "row_sums", "--python", program=AISP), 2)
        self.assert_one_error_line(refused, "row_sums.py already")

    # Memory of the caller's.

    TABLE = """
TABLE = numpy.arange(1 << 17, dtype=numpy.float32)
KEPT = TABLE.copy()
def inputs(seed):
    return {"i": numpy.random.default_rng(seed).integers(0, 1 << 16, 1)}
def fresh(i): return TABLE[int(i[0]):int(i[0]) + 1024].copy()
def measure_part(part):
    try:
        bench({"part": part}, baseline=fresh, inputs=inputs, reference=lambda i: KEPT[int(i[0]):int(i[0]) + 1024].astype(float), tolerance="exact", quiet=True)
        print("passed")
    except aisp.Failed as error:
        print(error)
    assert (TABLE == KEPT).all(), "the table was written"
"""

    def test_what_a_function_keeps_is_never_written(self):
        for part in ("lambda i: TABLE[int(i[0]):int(i[0]) + 1024]",
                     "lambda i: mapped[int(i[0]):int(i[0]) + 1024]",
                     "lambda i: numpy.frombuffer(memory, dtype=numpy.float32)[int(i[0]):int(i[0]) + 1024]",
                     "lambda i: keep(TABLE[int(i[0]):int(i[0]) + 1024].copy())",
                     "lambda i: (buffer.__setitem__(slice(None), TABLE[int(i[0]):int(i[0]) + 1024]), buffer[:])[1]"):
            with self.subTest(part):
                done = self.python(self.TABLE + f"""
KEPT.tofile("table")
mapped = numpy.memmap("table", dtype=numpy.float32, mode="r")
memory = KEPT.tobytes()
buffer = numpy.empty(1024, dtype=numpy.float32)
last = []
def keep(y):
    last[:] = [y]
    return y
measure_part({part})
""")
                self.assertIn("part returned memory that it keeps", done.stdout)

    def test_what_it_does_not_keep_is_taken_as_it_is(self):
        for part in ("fresh", "lambda i: numpy.concatenate([TABLE, TABLE])[int(i[0]):int(i[0]) + 1024]", "lambda i: circle(fresh(i))",
                     "lambda i: numpy.frombuffer(fresh(i).tobytes(), dtype=numpy.float32)"):
            with self.subTest(part):
                self.assertEqual(self.python(self.TABLE + f"""
def circle(y):
    circular = [y]
    circular.append(circular)
    return y
measure_part({part})
""").stdout, "passed\n")

    def test_two_parts_of_one_array_are_nobody_elses(self):
        self.python("""
def parts(x):
    both = numpy.stack([2 * x, x * x])
    return both[0], both[1]
result = bench(parts, baseline=lambda x: (x + x, x * x), reference=lambda x: (2 * x.astype(float), x.astype(float) ** 2))
assert result.passed
""")

    def test_memory_that_a_run_gets_again_shows_nothing_of_the_last(self):
        self.caught("""
def most(x):
    y = numpy.empty_like(x)
    numpy.multiply(x[:-1], 2, out=y[:-1])
    return y
def measure(): bench({"most": most})""", "most")

    def test_a_number_is_a_result(self):
        self.python("""
def positive(seed):
    return {"x": abs(inputs(seed)["x"])}
result = bench(lambda x: x.sum(), baseline=lambda x: numpy.add.reduce(x), inputs=positive, reference=lambda x: x.astype(float).sum(),
               tolerance=aisp.sum_of(1 << 16))
assert result.passed
""")

    # The script's view.

    def test_an_interrupt_at_any_moment(self):
        for delay in (0.3, 0.35, 0.4, 0.45, 0.5):
            done = self.python(f"""
import os, signal, threading
threading.Timer({delay}, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    aisp.bench("mine", inputs=inputs, baseline=double, optimized=twice, reference=reference, iterations=100000, budget=60, quiet=True)
    print("finished")
except KeyboardInterrupt:
    print("interrupted")
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
""")
            self.assertEqual((done.stdout, done.stderr), ("interrupted\n", ""))

    def test_arrays_that_are_none(self):
        for call, words in (("bench(lambda x: numpy.ma.masked_less(2 * x, 0), baseline=lambda x: numpy.ma.masked_less(2 * x, 0))", "masked array"),
                            ("bench(twice, inputs=lambda seed: numpy.zeros(0))", "input has no elements"),
                            ("bench(twice, inputs=lambda seed: numpy.array(['a']))", "of the type <U1"),
                            ("bench(twice, baseline=lambda x: float(x.sum()))", "output is a float; it must be an array"),
                            ("bench(twice, baseline=lambda x: x.astype(numpy.longdouble))", "output is of the type <f16"),
                            ("bench(twice, inputs=lambda seed: numpy.ones(4096))", "inputs(seed) gives the same for every seed"),
                            ("aisp.load('nowhere')", "there is no run 'nowhere'"), ("aisp.load()", "aisp.load needs a run")):
            with self.subTest(call):
                done = self.python(f"aisp.main(lambda: {call})", code=2)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                self.assertIn(words, done.stderr)
        self.caught("def measure(): bench({'masked': lambda x: numpy.ma.masked_less(2 * x, -5)})", "masked is a masked array")

    def test_nan_that_the_reference_has_too(self):
        self.caught("""
def masked(seed):
    x = numpy.random.default_rng(seed).uniform(-1, 1, (64, 512)).astype(numpy.float32)
    x[3] = -numpy.inf
    return {"x": x}
def softmax(x):
    with numpy.errstate(all="ignore"):
        e = numpy.exp(x - x.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)
def measure(): bench(lambda x: softmax(x), baseline=softmax, inputs=masked, reference=lambda x: softmax(x.astype(float)))""",
                    "softmax: 512 of 32768 elements of output are NaN or infinite, the first of them is element 1536: NaN, "
                    "and the reference is NaN there too")
        self.assertNotIn("the first run's", everything_said(self.result()))

    def test_a_locale_with_commas(self):
        made = subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", str(self.work / "de_DE.UTF-8")], capture_output=True)
        if made.returncode not in (0, 1) or not (self.work / "de_DE.UTF-8").exists():
            self.skipTest("localedef has no sources of locales here")
        done = self.python("""
import locale
locale.setlocale(locale.LC_ALL, "de_DE.UTF-8")
assert locale.localeconv()["decimal_point"] == ","
bench(twice, run_id="german")
""", env={"LOCPATH": str(self.work)})
        for text in (done.stdout, (self.artifacts / "german/benchmark_test_results.md").read_text()):
            self.assertRegex(text, r"\d\.\d")
            self.assertNotRegex(text, r"\d,\d")

    def test_an_argument_that_is_no_utf8(self):
        self.python("import sys; sys.argv.append('caf\\udce9'); assert bench(twice).passed")

    def test_inputs_that_are_drawn_into_one_buffer_differ(self):
        self.python("""
BUFFER = numpy.empty(1 << 16, dtype=numpy.float32)
def inputs(seed):
    numpy.random.default_rng(seed).random(out=BUFFER, dtype=numpy.float32)
    return {"x": BUFFER}
assert bench(twice, inputs=inputs).passed
""")


if __name__ == "__main__":
    unittest.main()
