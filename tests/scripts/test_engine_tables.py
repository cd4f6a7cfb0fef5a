# SPDX-License-Identifier: Apache-2.0
"""engine-tables on made-up runs of engine_bench."""
import json
import pathlib
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = SOURCE / "scripts/engine-tables"
PAGE = "# Engines\n\nBefore.\n\n<!-- tables: begin -->\nold\n<!-- tables: end -->\n\nBehind.\n"


def variant(name, ms, share=None, library="cublaslt_tuned", joules=(), run_ms=None, **more):
    made = {"name": name, "timing": {"median_ms": ms}, "flops": 2e9, "bytes": 1e9, "floor": {"percent": 84.4}, **more}
    if share:
        made["library_share"] = {"percent": share, "library": library}
    if joules:
        made["energy"] = {"raw_j": list(joules), "median_j": sorted(joules)[len(joules) // 2], "low_j": min(joules), "high_j": max(joules),
                          "run_ms": run_ms or ms}
    return made


def row(case, variants, pair="gemm_bf16", bound="compute", lesson="engine_tuned", status="passed", **sizes):
    return {"target": f"gemm_engine:{pair}", "case": case, "status": status, "bound": bound, "lesson": lesson, "sizes": sizes, "variants": variants}


class EngineTables(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "page.md").write_text(PAGE)

    def run_of(self, name, rows, budget="0.5"):
        folder = self.root / name
        folder.mkdir()
        (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [{"kind": "aisp results log"}, *rows]))
        (folder / "manifest.json").write_text(json.dumps({"gpus": [{"name": "NVIDIA H100"}], "started_utc": "2026-11-26T02:46:21Z", "commit": "f9714ffbc5062",
                                                          "configuration": [{"name": "mode", "value": "events"}, {"name": "budget", "value": budget}]}))
        return folder

    def engine_tables(self, *arguments):
        return subprocess.run([SCRIPT, "--page", self.root / "page.md", *arguments], capture_output=True, text=True)

    def lines(self, *folders):
        result = self.engine_tables(*folders)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return (self.root / "page.md").read_text().splitlines()

    def test_a_row_has_the_fastest_of_both_sides(self):
        both = [variant("cublaslt", 0.0255), variant("engine", 0.0261, 95), variant("engine_tuned", 0.0247, 100.4), variant("cublaslt_tuned", 0.0248)]
        lines = self.lines(self.run_of("a", [row("square", both, m=2048, k=64, equal=0), row("wide", both, m=4096, k=64, equal=1)]))
        self.assertEqual(lines[:3] + lines[-3:], ["# Engines", "", "Before.", "<!-- tables: end -->", "", "Behind."])
        self.assertNotIn("old", lines)
        self.assertIn("<!-- not recorded: engine_bench, NVIDIA H100, 2026-11-26, f9714ffbc, --budget 0.5s -->", lines)
        self.assertIn("| shape | sizes | engine | library | of the library | engine's TFLOP/s |", lines)
        self.assertIn("| square | m 2048 | 24.7 us | 24.8 us | 100 % | 81.0 |", lines)
        self.assertIn("| wide | m 4096 | 24.7 us | 24.8 us | 100 % | 81.0 |", lines)

    def test_a_pair_that_no_run_measured_keeps_its_table(self):
        both = [variant("cublaslt", 0.0255), variant("engine_tuned", 0.0247, 100.4), variant("cublaslt_tuned", 0.0248)]
        first = self.lines(self.run_of("a", [row("square", both, m=1), row("few", both, pair="gemm_split_k", m=1)]))
        self.assertEqual(self.lines(self.run_of("b", [row("square", both, m=1), row("few", both, pair="gemm_split_k", m=1)])), first)
        again = self.lines(self.run_of("c", [row("other", both, m=1)], budget="2"))
        self.assertIn("| other |", "\n".join(again))
        self.assertEqual(again[again.index("`gemm_split_k` (NVIDIA H100):"):], first[first.index("`gemm_split_k` (NVIDIA H100):"):])

    def test_rows_that_no_run_measured_stay_with_what_they_are_of(self):
        def timed(ms, joules=()):
            return [variant("engine_tuned", ms, 100, joules=joules), variant("cublaslt_tuned", ms, joules=joules)]
        self.lines(self.run_of("a", [row("left", timed(1, (1, 2, 3))), row("again", timed(2))], budget="1.0"))
        lines = self.lines(self.run_of("b", [row("added", timed(3)), row("again", timed(4))], budget="2.0"))
        self.assertEqual([line for line in lines if line.startswith("| ") and " ms " in line],
                         ["| left |  | 1.00 ms | 1.00 ms | 100 % | 2.00 | 100 % | 2.00 [1.00, 3.00] | 2.00 [1.00, 3.00] |",
                          "| again |  | 4.00 ms | 4.00 ms | 100 % | 0.500 |  |  |  |", "| added |  | 3.00 ms | 3.00 ms | 100 % | 0.667 |  |  |  |"])
        self.assertIn("f9714ffbc, --budget 1s; NVIDIA H100, 2026-11-26, f9714ffbc, --budget 2s -->", " ".join(lines))
        lines = self.lines(self.run_of("c", [row("left", timed(5)), row("again", timed(6)), row("added", timed(7))], budget="3.0"))
        self.assertIn("<!-- not recorded: engine_bench, NVIDIA H100, 2026-11-26, f9714ffbc, --budget 3s -->", lines)

    def test_a_size_that_a_row_left_has_is_told_by_all(self):
        both = [variant("engine_tuned", 1, 100), variant("cublaslt_tuned", 1)]
        self.lines(self.run_of("a", [row("left", both, m=1, n=2), row("wide", both, m=1, n=3)]))
        lines = self.lines(self.run_of("b", [row("wide", both, m=4, n=3)]))
        self.assertIn("| wide | n 3 | 1.00 ms | 1.00 ms | 100 % | 2.00 |", lines)

    def test_rows_of_another_gpu_go(self):
        both = [variant("engine_tuned", 1, 100), variant("cublaslt_tuned", 1)]
        page = self.lines(self.run_of("a", [row("left", both)]))
        (self.root / "page.md").write_text("\n".join(page).replace("H100", "H200") + "\n")
        self.assertNotIn("| left |", "\n".join(self.lines(self.run_of("b", [row("added", both)]))))

    def test_another_variant_is_named_where_it_is_faster(self):
        def timed(ms):
            return [variant("engine", ms, 99), variant("engine_tuned", 1.4, 97), variant("cublaslt_tuned", 1.35)]
        lines = self.lines(self.run_of("a", [row("much", timed(1.33)), row("hardly", timed(1.39))]))
        self.assertIn("| much |  | 1.33 ms (`engine`) | 1.35 ms | 99 % | 1.50 |", lines)
        self.assertIn("| hardly |  | 1.40 ms | 1.35 ms | 97 % | 1.43 |", lines)

    def test_what_reading_limits_has_bytes(self):
        both = [variant("split_kv_tuned", 0.5, 101, "cudnn"), variant("cudnn", 0.505)]
        lines = self.lines(self.run_of("a", [row("long", both, bound="memory", lesson="split_kv_tuned")]))
        self.assertIn("| shape | sizes | engine | library | of the library | engine's TB/s | of the rate of reading |", lines)
        self.assertIn("| long |  | 500 us | 505 us | 101 % | 2.00 | 84 % |", lines)

    def test_without_a_library_the_baseline_stands_beside(self):
        both = [variant("in_order", 2), variant("as_they_come", 1, speedup={"value": 2.004})]
        lines = self.lines(self.run_of("a", [row("full", both, lesson="as_they_come")]))
        self.assertIn("| shape | sizes | engine | `in_order` | speedup | engine's TFLOP/s |", lines)
        self.assertIn("| full |  | 1.00 ms | 2.00 ms | 2.00x | 2.00 |", lines)

    def test_back_to_back_and_joules_need_three_readings_of_both(self):
        def read(readings):
            return [variant("engine_tuned", 1, 100, joules=(0.41, 0.38, 0.44), run_ms=1.25), variant("cublaslt_tuned", 1, joules=readings, run_ms=1.2)]
        lines = self.lines(self.run_of("a", [row("three", read((2, 1, 12.34))), row("two", read((2, 1)))]))
        self.assertIn("| shape | sizes | engine | library | of the library | engine's TFLOP/s | back to back, of the library | engine's J a run "
                      "| library's J a run |", lines)
        self.assertIn("| three |  | 1.00 ms | 1.00 ms | 100 % | 2.00 | 96 % | 0.410 [0.380, 0.440] | 2.00 [1.00, 12.3] |", lines)
        self.assertIn("| two |  | 1.00 ms | 1.00 ms | 100 % | 2.00 |  |  |  |", lines)

    def test_back_to_back_each_side_has_its_fastest(self):
        read = [variant("engine_tuned", 1, 100, joules=(1, 1, 1), run_ms=2), variant("engine", 1.2, 90, joules=(2, 2, 2), run_ms=1.6),
                variant("cublaslt_tuned", 1, joules=(3, 3, 3), run_ms=1.8), variant("cublaslt", 1.2, joules=(4, 4, 4), run_ms=1.5)]
        lines = self.lines(self.run_of("a", [row("square", read)]))
        self.assertIn("| square |  | 1.00 ms | 1.00 ms | 100 % | 2.00 | 94 % | 2.00 [2.00, 2.00] | 4.00 [4.00, 4.00] |", lines)

    def test_back_to_back_without_a_library_is_a_speedup(self):
        both = [variant("in_order", 2, joules=(4, 4, 4), run_ms=3), variant("as_they_come", 1, joules=(2, 2, 2), speedup={"value": 2.004})]
        lines = self.lines(self.run_of("a", [row("full", both, lesson="as_they_come")]))
        self.assertIn("| full |  | 1.00 ms | 2.00 ms | 2.00x | 2.00 | 3.00x | 2.00 [2.00, 2.00] | 4.00 [4.00, 4.00] |", lines)

    def test_a_shape_is_of_the_first_run_in_which_it_passed(self):
        def timed(ms):
            return [variant("engine_tuned", ms, 100), variant("cublaslt_tuned", ms)]
        first = self.run_of("a", [row("both", timed(1)), row("late", timed(2), status="skipped")], budget="1.0")
        second = self.run_of("b", [row("both", timed(3)), row("late", timed(4))])
        lines = self.lines(first, second)
        self.assertIn("| both |  | 1.00 ms | 1.00 ms | 100 % | 2.00 |", lines)
        self.assertIn("| late |  | 4.00 ms | 4.00 ms | 100 % | 0.500 |", lines)
        self.assertIn("f9714ffbc, --budget 0.5s; NVIDIA H100, 2026-11-26, f9714ffbc, --budget 1s -->", " ".join(lines))

    def test_what_cannot_be_read_is_named_and_changes_nothing(self):
        broken = self.run_of("broken", [])
        (broken / "manifest.json").write_text("{}")
        for folder in (self.root / "none", broken):
            result = self.engine_tables(folder)
            self.assertEqual(result.returncode, 4)
            self.assertIn(f"{folder} is no run", result.stderr)
            self.assertEqual((self.root / "page.md").read_text(), PAGE)
        (self.root / "page.md").write_text("# Engines\n")
        result = self.engine_tables(self.run_of("a", []))
        self.assertEqual(result.returncode, 4)
        self.assertIn("has no place for tables", result.stderr)
        self.assertEqual(subprocess.run([SCRIPT], capture_output=True).returncode, 2)

    def test_the_page_of_the_engines_has_a_table_for_each_pair(self):
        page = (SOURCE / "tests/engines/README.md").read_text()
        tables = page[page.index("<!-- tables: begin -->\n"):page.index("<!-- tables: end -->\n")]
        pairs = sorted(path.stem for path in (SOURCE / "tests/engines").glob("*/*.cu"))
        self.assertEqual([line.split("`")[1] for line in tables.splitlines() if line.startswith("`")], pairs)


if __name__ == "__main__":
    unittest.main()
