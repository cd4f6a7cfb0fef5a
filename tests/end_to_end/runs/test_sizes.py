# SPDX-License-Identifier: Apache-2.0
"""--size sets what a pair declares, --sweep measures its cases."""
import csv
import json
import os
import resource
import unittest

import schemas
from harness import AISP, EndToEnd, results_log, variant

SIZED = "ch89:sized"
COMPILED = "ch90:dispatched"


class Size(EndToEnd):
    def refused(self, *flags, words):
        finished = self.run_pairs(SIZED, flags=flags)
        self.assert_code(finished, 2)
        self.assert_one_error_line(finished, *words)
        self.assertFalse(self.artifacts.exists(), "a slip of the pen leaves no folder")

    def test_the_workload_has_the_sizes_and_the_result_says_so(self):
        finished = self.run_pairs(SIZED, flags=("--size", "rows=128", "--size", "columns=64,backwards=1"))
        self.assert_code(finished, 0)
        pair = finished.pair(SIZED)
        self.assertEqual(pair["status"], "passed")
        self.assertEqual(pair["sizes"], {"rows": 128, "columns": 64, "backwards": 1})
        self.assertTrue(pair["sizes_set"])
        self.assertEqual(variant(pair, "slow")["bytes"], 8 * 128 * 64)
        self.assertIn("rows=128", finished.out)
        page = (finished.folder / "ch89_sized/results/benchmark_test_results.md").read_text()
        self.assertIn("sizes backwards=1, columns=64, rows=128 (set)", page)
        rows = list(csv.DictReader((finished.folder / "results.csv").read_text().splitlines()))
        self.assertEqual({(row["sizes"], row["sizes_set"]) for row in rows}, {("backwards=1, columns=64, rows=128", "yes")})

    def test_without_it_sizes_are_full_or_scaled(self):
        pair = self.run_pairs(SIZED, flags=("--scale", "0.25", "--run-id", "quarter")).pair(SIZED)
        self.assertEqual(pair["sizes"], {"rows": 128, "columns": 256, "backwards": 0})
        self.assertFalse(pair["sizes_set"])

    def test_what_is_wrong_is_said_before_anything_runs(self):
        self.refused("--size", "width=64", words=("width", "rows, columns, backwards", SIZED))
        self.refused("--size", "rows=100", words=("rows 100", "multiple of 64", "128 is the nearest"))
        self.refused("--size", "rows=0", words=("rows 0", "from 64 to 65536"))
        self.refused("--size", "rows=64000000000000", words=("64000000000000", "from 64 to 65536"))
        self.refused("--size", "backwards=2", words=("backwards 2", "from 0 to 1"))
        self.refused("--size", "rows", words=("--size", "NAME=N"))
        self.refused("--size", "rows=64,rows=128", words=("--size",))
        self.refused("--size", "rows=64", "--size", "rows=128", words=("--size", "rows twice"))

    def test_a_pair_without_sizes_says_so(self):
        finished = self.run_pairs("ch90:good", flags=("--size", "rows=64"))
        self.assert_code(finished, 2)
        self.assert_one_error_line(finished, "ch90:good", "declares no sizes")

    def test_from_a_file(self):
        (self.work / "aisp.toml").write_text('size = ["rows=64", "columns=2"]\n')
        self.assertEqual(self.run_pairs(SIZED).pair(SIZED)["sizes"], {"rows": 64, "columns": 2, "backwards": 0})

    def test_it_is_no_expectation(self):
        finished = self.run_pairs(SIZED, flags=("--size", "rows=64", "--update-expectations", "--expectations-dir", "expected"))
        self.assertIn("not recorded: it ran with sizes set", finished.err)
        self.assertEqual(list((self.work / "expected").rglob("*.json")), [])

    def test_compare_names_other_sizes_and_compares_nothing(self):
        for name, rows in (("a", 64), ("b", 128)):
            self.run_pairs(SIZED, flags=("--size", f"rows={rows}", "--run-id", name))
        finished = self.call("compare", "artifacts/a", "artifacts/b")
        self.assertIn("other sizes, not compared: backwards=0, columns=256, rows=64 -> backwards=0, columns=256, rows=128", finished.out + finished.err)
        document = json.loads(self.call("compare", "artifacts/a", "artifacts/b", "--json", "-").out)
        self.assertEqual(document["metrics"], [])
        self.assertEqual([each["target"] for each in document["sizes_changed"]], [SIZED])

    @unittest.skipIf("AISP_SANITIZED" in os.environ, "the address sanitizer cannot live with RLIMIT_AS")
    def test_sizes_beyond_the_memory_are_what_to_change(self):
        limit = 2 << 30
        finished = self.run_pairs(SIZED, flags=("--size", "rows=65536,columns=4096"),
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        self.assert_code(finished, 1)
        self.assertIn("choose a smaller --scale or --size", finished.out)

    def test_resume_measures_again_with_other_sizes_only(self):
        self.run_pairs(SIZED, flags=("--size", "rows=64", "--run-id", "once"))
        self.assert_code(self.call("run", "--resume", "once"), 0)
        self.assertEqual(len(results_log(self.artifacts / "once")), 1, "its own sizes: done already")
        self.assert_code(self.call("run", "--resume", "once", "--size", "rows=128"), 0)
        self.assertEqual([pair["sizes"]["rows"] for pair in results_log(self.artifacts / "once")], [64, 128])

    def test_resume_asks_for_the_sizes_that_are_no_longer_set_too(self):
        self.run_pairs(SIZED, flags=("--size", "rows=64,columns=2", "--run-id", "once"))
        self.assert_code(self.call("run", "--resume", "once", "--size", "rows=64"), 0)
        self.assertEqual([pair["sizes"]["columns"] for pair in results_log(self.artifacts / "once")], [2, 256])

    def test_what_a_file_or_a_resumed_run_set_is_named_as_theirs(self):
        (self.work / "aisp.toml").write_text('size = "rows=100"\n')
        finished = self.run_pairs(SIZED)
        self.assert_code(finished, 2)
        self.assert_one_error_line(finished, "aisp.toml", "rows 100")
        self.assertNotIn("--size", finished.err)
        (self.work / "aisp.toml").unlink()
        self.run_pairs(SIZED, flags=("--size", "rows=64", "--run-id", "once"))
        finished = self.call("run", "--resume", "once", "--sweep")
        self.assert_code(finished, 2)
        self.assert_one_error_line(finished, "resumed run: size rows=64 together with --sweep")

    def test_compare_does_not_take_set_sizes_for_those_of_a_pair_that_declared_none(self):
        for name, flags in (("a", ()), ("b", ("--size", "rows=64"))):
            self.run_pairs(SIZED, flags=(*flags, "--run-id", name))
        file = self.artifacts / "a/results.jsonl"
        header, line = file.read_text().splitlines()
        earlier = json.loads(line)
        earlier["sizes"] = {}
        file.write_text(f"{header}\n{json.dumps(earlier)}\n")
        document = json.loads(self.call("compare", "artifacts/a", "artifacts/b", "--json", "-").out)
        self.assertEqual(document["metrics"], [])
        self.assertEqual(document["sizes_changed"][0]["before"], "not known")

    def test_explain_and_list_targets_show_them(self):
        text = self.call("explain", SIZED).out
        for words in ("rows: 512, or another multiple of 64 from 64 to 65536", "backwards: 0, or another from 0 to 1", "tall: rows=4096,columns=64"):
            self.assertIn(words, text)
        target = next(t for t in json.loads(self.call("list-targets", "--json").out) if t["target"] == SIZED)
        self.assertEqual([size["name"] for size in target["sizes"]], ["rows", "columns", "backwards"])
        self.assertEqual(target["sweep"][0], {"name": "small", "sizes": "rows=64,columns=128"})


    def test_a_size_that_no_code_is_compiled_for_skips_the_variant_with_those_that_are(self):
        pair = self.run_pairs(COMPILED, flags=("--size", "width=12")).pair(COMPILED)
        self.assertEqual([variant(pair, name)["status"] for name in ("looped", "unrolled")], ["passed", "skipped"])
        self.assertIn("width must be 4, 8 or 16, not 12", json.dumps(pair))

    def test_a_size_that_code_is_compiled_for_runs_it(self):
        pair = self.run_pairs(COMPILED, flags=("--size", "width=16")).pair(COMPILED)
        self.assertEqual((pair["status"], variant(pair, "unrolled")["status"]), ("passed", "passed"))

    def test_a_size_below_its_least_is_refused(self):
        refused = self.run_pairs(COMPILED, flags=("--size", "width=3"))
        self.assert_code(refused, 2)
        self.assert_one_error_line(refused, "width 3 is not from 4 to 16")


class Sweep(EndToEnd):
    def test_every_case_is_a_result_of_its_own(self):
        finished = self.run_pairs("ch89", "ch90:good", flags=("--sweep",))
        self.assert_code(finished, 0)
        self.assertRegex(finished.err, r"selected pairs? declares? no cases for --sweep and (is|are) left out")
        pairs = finished.lines()
        self.assertEqual([pair["case"] for pair in pairs], ["small", "tall", "full"], "pairs without cases are left out")
        self.assertEqual([pair["sizes"]["rows"] for pair in pairs], [64, 4096, 512])
        self.assertEqual({pair["status"] for pair in pairs}, {"passed"})
        for case in ("small", "tall", "full"):
            self.assertIn(f"{SIZED} {case} ", finished.out)
            own = json.loads((finished.folder / "ch89_sized" / case / "results/benchmark_test_results.json").read_text())
            self.assertEqual(own["case"], case)
        page = (finished.folder / "benchmark_test_results.md").read_text()
        table = page[page.index(f"## Sweep of {SIZED}"):]
        self.assertIn("| tall | backwards=0, columns=64, rows=4096 | slow (baseline) |", table)
        self.assertIn(f"Sweep of {SIZED}", finished.out)

    def test_quiet_is_the_summary_only(self):
        finished = self.run_pairs(SIZED, flags=("--sweep", "-q"))
        self.assertNotIn("Sweep of", finished.out)
        self.assertIn("3 passed", finished.out)

    def test_other_sizes_go_with_it_and_those_of_the_cases_do_not(self):
        finished = self.run_pairs(SIZED, flags=("--sweep", "--size", "backwards=1"))
        self.assertEqual([pair["sizes"]["backwards"] for pair in finished.lines()], [1, 1, 1])
        finished = self.run_pairs(SIZED, flags=("--sweep", "--size", "rows=64"))
        self.assert_code(finished, 2)
        self.assert_one_error_line(finished, "--size rows=64", "small", "leave one out")

    def test_nothing_to_sweep(self):
        finished = self.run_pairs("ch90:good", flags=("--sweep",))
        self.assert_code(finished, 5)
        self.assert_one_error_line(finished, "--sweep")

    def test_resume_takes_over_the_cases_that_are_there(self):
        self.run_pairs(SIZED, flags=("--sweep", "--run-id", "swept"))
        file = self.artifacts / "swept/results.jsonl"
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(lines[:2] + lines[3:]))
        self.assert_code(self.call("run", "--resume", "swept"), 0)
        self.assertEqual([pair["case"] for pair in results_log(self.artifacts / "swept")], ["small", "full", "tall"])

    def test_analyze_misses_the_cases_that_never_started(self):
        (self.work / "expectations").mkdir()
        self.run_pairs(SIZED, flags=("--sweep", "--run-id", "cut"))
        self.assert_code(self.call("analyze", "cut"), 5)
        file = self.artifacts / "cut/results.jsonl"
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:2]))
        finished = self.call("analyze", "cut")
        self.assert_code(finished, 1)
        self.assertRegex(finished.out, r"ch89:sized .*missing: .*cases tall, full: .*--resume")

    def test_a_switch_can_be_turned_off(self):
        (self.work / "aisp.toml").write_text("sweep = true\n")
        plan = self.run_pairs(SIZED, flags=("--sweep=false", "--dry-run"))
        self.assertEqual(len(plan.out.splitlines()), 1)
        for on in ((), ("--sweep",), ("--sweep=true",), ("--sweep=false", "--sweep")):
            self.assertEqual(len(self.run_pairs(SIZED, flags=(*on, "--dry-run")).out.splitlines()), 3, on)
        finished = self.run_pairs(SIZED, flags=("--sweep=maybe", "--dry-run"))
        self.assert_code(finished, 2)
        self.assert_one_error_line(finished, "--sweep 'maybe' must be true or false")

    def test_a_sweep_is_recorded_to_be_drawn_and_is_no_expectation(self):
        finished = self.run_pairs(SIZED, flags=("--sweep", "--update-expectations", "--expectations-dir", "expected", "--run-id", "s"))
        self.assertIn(f"recorded 1 sweep in expected, for pictures (scripts/pages); their points are no expectations: {SIZED}",
                      finished.err)
        self.assertNotIn("is not recorded", finished.err)
        (file,) = (self.work / "expected").rglob("*.json")
        self.assertEqual(str(file.relative_to(self.work)), "expected/host/sweeps/ch89_sized.json")
        record = json.loads(file.read_text())
        self.assertEqual(schemas.mistakes(record, "sweep"), [])
        self.assertEqual([point["case"] for point in record["points"]], ["small", "tall", "full"])
        log = self.artifacts / "s/results.jsonl"
        header, *pairs = [json.loads(line) for line in log.read_text().splitlines()]
        pairs[1].update(status="failed", reason="wrong result")
        log.write_text("".join(json.dumps(line) + "\n" for line in (header, *pairs)))
        finished = self.call("analyze", "s", "--update-expectations", "--expectations-dir", "other")
        for case in ("small", "full"):
            self.assertIn(f"{SIZED} {case} is not recorded: it ran with sizes set", finished.err)
        self.assertEqual(list((self.work / "other").rglob("*.json")), [], "a curve with a hole is none")

    def test_an_interrupted_sweep_names_the_sizes_of_what_did_not_start(self):
        finished = self.run_pairs(SIZED, flags=("--sweep", "--suite-timeout", "0.000001s"))
        document = json.loads((finished.folder / "benchmark_test_results.json").read_text())
        self.assertEqual([pair["status"] for pair in document["pairs"]], ["skipped"] * 3)
        self.assertEqual({tuple(pair["sizes"]) for pair in document["pairs"]}, {("backwards", "columns", "rows")})

    def test_the_cases_of_every_pair_are_sizes_that_it_takes(self):
        targets = json.loads(self.call("list-targets", "--json", program=AISP).out)
        self.assertTrue(any(target["sweep"] for target in targets))
        for target in targets:
            declared = {size["name"]: size for size in target["sizes"]}
            self.assertEqual(len({case["name"] for case in target["sweep"]}), len(target["sweep"]), target["target"])
            self.assertEqual(len(declared), len(target["sizes"]), target["target"])
            for case in target["sweep"]:
                for name, value in (part.split("=") for part in case["sizes"].split(",")):
                    with self.subTest(target=target["target"], case=case["name"]):
                        size = declared[name]
                        self.assertEqual(int(value) % size["multiple"], 0)
                        self.assertTrue(size["least"] <= int(value) <= size["most"])

    def test_dry_run_and_html_and_roofline(self):
        plan = self.run_pairs(SIZED, flags=("--sweep", "--dry-run")).out
        self.assertEqual([line.split()[1] for line in plan.splitlines()], ["small", "tall", "full"])
        self.run_pairs(SIZED, flags=("--sweep", "--run-id", "swept"))
        self.assert_code(self.call("report", "swept", "--html"), 0)
        html = (self.artifacts / "swept/report.html").read_text()
        self.assertIn('id="sweeps"', html)
        rows = self.call("roofline", "swept").out
        for case in ("small", "tall", "full"):
            self.assertIn(f"{SIZED} {case}", rows)

    def test_a_case_that_was_changed_by_hand_is_refused(self):
        self.run_pairs(SIZED, flags=("--sweep", "--run-id", "swept"))
        file = self.artifacts / "swept/results.jsonl"
        file.write_text(file.read_text().replace('"case":"tall"', '"case":"../../outside"'))
        finished = self.call("report", "swept", "--html")
        self.assert_code(finished, 2)
        self.assert_one_error_line(finished, "no case of a sweep")

    def test_verify_checks_every_case(self):
        finished = self.call("verify", "-t", SIZED, "--sweep")
        self.assert_code(finished, 0)
        self.assertIn("3 passed", finished.out)
        deep = self.call("verify", "-t", SIZED, "--sweep", "--deep").out
        for case in ("small", "tall", "full"):
            self.assertRegex(deep, f"(?m)^{SIZED} {case} .*not compared: runs on the host")

    def test_analyze_names_the_case_that_failed(self):
        self.run_pairs(SIZED, flags=("--update-expectations", "--expectations-dir", "expected", "--run-id", "whole"))
        self.run_pairs(SIZED, flags=("--sweep", "--run-id", "swept"))
        file = self.artifacts / "swept/results.jsonl"
        header, *pairs = [json.loads(line) for line in file.read_text().splitlines()]
        pairs[1].update(status="failed", reason="wrong result")
        file.write_text("".join(json.dumps(line) + "\n" for line in (header, *pairs)))
        finished = self.call("analyze", "swept", "--expectations-dir", "expected")
        self.assert_code(finished, 1)
        self.assertIn("case tall: wrong result", finished.out)


class Lists(EndToEnd):
    """--size with several values."""

    def refused(self, *flags, words):
        finished = self.run_pairs(SIZED, flags=flags)
        self.assert_code(finished, 2)
        self.assert_one_error_line(finished, *words)
        self.assertFalse(self.artifacts.exists(), "a slip of the pen leaves no folder")

    def test_every_value_is_a_result_of_its_own(self):
        finished = self.run_pairs(SIZED, flags=("--size", "rows=64:256:*2,columns=64", "--run-id", "swept"))
        self.assert_code(finished, 0)
        pairs = finished.lines()
        self.assertEqual([pair["case"] for pair in pairs], ["rows_64", "rows_128", "rows_256"])
        self.assertEqual([(pair["sizes"]["rows"], pair["sizes"]["columns"]) for pair in pairs], [(64, 64), (128, 64), (256, 64)])
        self.assertEqual(json.loads((finished.folder / "manifest.json").read_text())["cases"], {SIZED: ["rows_64", "rows_128", "rows_256"]})
        self.assertTrue((finished.folder / "ch89_sized/rows_128/results/benchmark_test_results.json").exists())
        table = finished.out[finished.out.index(f"Sweep of {SIZED}"):].splitlines()
        self.assertEqual(table[1].split()[:3], ["rows", "slow", "doubled"])
        self.assertEqual([line.split()[0] for line in table[2:5]], ["64", "128", "256"])
        page = (finished.folder / "benchmark_test_results.md").read_text()
        self.assertIn("| rows | slow | doubled | speedup", page)
        self.assert_code(self.call("report", "swept", "--html"), 0)
        html = (self.artifacts / "swept/report.html").read_text()
        part = html[html.index('id="sweeps"'):html.index("All variants at all points")]
        self.assertEqual(part.count("<polyline"), 2 * 3 * 2, "two variants; rate, time and speedup; wide and narrow")
        self.assertIn("doubled (lesson)", part)

    def test_two_lists_make_a_grid_and_cases_a_further_axis(self):
        plan = self.run_pairs(SIZED, flags=("--size", "rows=64:192:+64", "--size", "columns=2,4", "--dry-run")).out.splitlines()
        self.assertEqual([line.split()[1] for line in plan],
                         [f"columns_{c}_rows_{r}" for c in (2, 4) for r in (64, 128, 192)])
        plan = self.run_pairs(SIZED, flags=("--sweep", "--size", "backwards=0,1", "--dry-run")).out.splitlines()
        self.assertEqual([line.split()[1] for line in plan], [f"{c}_backwards_{b}" for c in ("small", "tall", "full") for b in (0, 1)])

    def test_what_is_wrong_is_said_before_anything_runs(self):
        self.refused("--size", "width=64,128", words=("width", "rows, columns, backwards", SIZED))
        self.refused("--size", "rows=64:640:+3", words=("rows 67", "multiple of 64"))
        self.refused("--size", "rows=65536:131072:*2", words=("rows 131072", "from 64 to 65536"))
        self.refused("--size", "rows=128:64:*2", words=("empty range", "128:64:*2"))
        self.refused("--size", "rows=64:128", words=("rows=64:128", "NAME=FIRST:LAST:*K"))
        self.refused("--size", "rows=64:16384:+64,columns=2,4", words=("grid of 512 points", "256 at most"))
        self.refused("--sweep", "--size", "rows=64,128", words=("--size rows=64,128", "small", "leave one out"))
        many = ",".join(str(2 * i) for i in range(1, 101))
        finished = self.run_pairs(SIZED, flags=("--size", f"columns={many},backwards=0,1,rows=64,128"))
        self.assert_one_error_line(finished, "grid of 400 points")

    def test_resume_measures_the_values_that_are_new(self):
        self.run_pairs(SIZED, flags=("--size", "rows=64,128", "--run-id", "grown"))
        finished = self.call("run", "--resume", "grown")
        self.assert_code(finished, 0)
        self.assertIn("2 of 2 pairs were done already", finished.err)
        self.assert_code(self.call("run", "--resume", "grown", "--size", "rows=64:256:*2"), 0)
        self.assertEqual([pair["case"] for pair in results_log(self.artifacts / "grown")], ["rows_64", "rows_128", "rows_256"])

    def test_compare_takes_points_of_one_name(self):
        for name, rows in (("a", "64,128"), ("b", "128,256")):
            self.run_pairs(SIZED, flags=("--size", f"rows={rows}", "--run-id", name))
        document = json.loads(self.call("compare", "artifacts/a", "artifacts/b", "--json", "-").out)
        self.assertEqual({metric["target"] for metric in document["metrics"]}, {f"{SIZED} rows_128"})
        self.assertEqual(document["only_before"], [f"{SIZED} rows_64"])
        self.assertEqual(document["only_after"], [f"{SIZED} rows_256"])

    def test_analyze_misses_the_points_that_never_started(self):
        (self.work / "expectations").mkdir()
        self.run_pairs(SIZED, flags=("--size", "rows=64,128,192", "--run-id", "cut"))
        file = self.artifacts / "cut/results.jsonl"
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:2]))
        finished = self.call("analyze", "cut")
        self.assert_code(finished, 1)
        self.assertRegex(finished.out, r"ch89:sized .*missing: .*cases rows_128, rows_192: .*--resume")

    def test_from_a_file(self):
        (self.work / "aisp.toml").write_text('size = ["rows=64,128", "columns=2"]\n')
        self.assertEqual([pair["sizes"]["rows"] for pair in self.run_pairs(SIZED).lines()], [64, 128])

    def test_recorded_and_drawn_in_a_readme(self):
        self.run_pairs(SIZED, flags=("--size", "rows=64:256:*2", "--update-expectations"))
        chapter = self.work / "chapters/ch89"
        chapter.mkdir(parents=True)
        (chapter / "README.md").write_text("<!-- measured: begin -->\n<!-- measured: end -->\n"
                                           "![a](curve.svg)<!-- picture: sweep host sized -->\n"
                                           "![b](gain.svg)<!-- picture: sweep_speedups host sized -->\n")
        self.assert_code(self.pages("--check"), 1)
        self.assert_code(self.pages(), 0)
        for name in ("curve", "gain"):
            text = (chapter / f"{name}.svg").read_text()
            self.assertEqual(text.count("<polyline"), 2)
            self.assertIn(">256<", text)
        self.assert_code(self.pages("--check"), 0)
        record = self.work / "expectations/host/sweeps/ch89_sized.json"
        whole = record.read_text()
        record.write_text(whole.replace('"median_ms": ', '"median_ms": 9'))
        finished = self.pages("--check")
        self.assert_code(finished, 1)
        self.assertIn("curve.svg", finished.out)
        record.write_text(whole.replace('"median_ms": ', '"median_ms": -'))
        finished = self.pages("--check")
        self.assert_code(finished, 2)
        self.assertRegex(finished.err, r"ch89_sized\.json: .*what no measurement gives\n$")


class OfShippedPairs(EndToEnd):
    def test_what_is_no_multiple_or_out_of_range_is_refused(self):
        for target in json.loads(self.call("list-targets", "--json", program=AISP).out):
            for size in target["sizes"]:
                wrong = {size["most"] + size["multiple"]} | ({size["least"] + 1} if size["multiple"] > 1 else set())
                for value in sorted(wrong):
                    with self.subTest(target=target["target"], size=size["name"], value=value):
                        finished = self.call("verify", "--targets", target["target"], "--size", f"{size['name']}={value}", program=AISP)
                        self.assert_code(finished, 2)
                        self.assert_one_error_line(finished, size["name"], str(value))


if __name__ == "__main__":
    unittest.main()
