# SPDX-License-Identifier: Apache-2.0
"""Recording expectations, and what is made of them: chapter tables and rooflines."""
import json
import os
import re
import sys
import unittest
import xml.etree.ElementTree as tree

from harness import AISP, FIXTURES, QUICK, SOURCE, EndToEnd
from schemas import mistakes

sys.path[:0] = [str(SOURCE / "scripts" / folder) for folder in ("lib", "lessons")]
from number_text import display_ms, human_rate, metric_number
from records import Metric, read_records

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
SVG = "{http://www.w3.org/2000/svg}"


class Recorded(EndToEnd):
    def record(self, target="ch90:good", flags=(), **keywords):
        return self.run_pairs(target, flags=("--update-expectations", *flags), **keywords)

    def expectations(self, chapter="ch90"):
        return json.loads((self.work / f"expectations/host/{chapter}.json").read_text())

    def change(self, change, chapter="ch90"):
        content = self.expectations(chapter)
        change(content)
        (self.work / f"expectations/host/{chapter}.json").write_text(json.dumps(content))

    def readme(self, chapter="ch90", text=f"# Chapter\n\n{BEGIN}\nold\n{END}\n\nafter\n"):
        path = self.work / "chapters" / chapter / "README.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def tables(self, *flags):
        return self.call("--root", ".", "--aisp", FIXTURES, *flags, program=str(SOURCE / "scripts/pages"))

    def assert_one_line_of_error(self, finished, *words):
        lines = [line for line in finished.err.splitlines() if "looked at" not in line]
        self.assertEqual(len(lines), 1, finished.err)
        for word in words:
            self.assertIn(word, lines[0])

    def differing(self, finished):
        return [line.split(":")[0] for line in finished.out.splitlines() if not line.startswith(" ")]


class Recording(Recorded):
    def test_a_real_pair(self):
        finished = self.record("ch03:false_sharing", program=AISP)
        self.assert_code(finished, 0)
        self.assertIn("recorded 1 expectation in expectations", finished.err)
        pair = self.expectations("ch03")["pairs"]["false_sharing"]
        measured = finished.pair("ch03:false_sharing")
        (run,) = pair["runs"]
        self.assertEqual(run["source_digest"], measured["source_digest"])
        self.assertEqual(pair["bound"], measured["bound"])
        baseline = measured["variants"][0]
        self.assertEqual((pair["baseline"], run["baseline_median_ms"]), (baseline["name"], baseline["timing"]["median_ms"]))
        self.assertEqual(pair["baseline_cost"], {"flops": 0, "bytes": baseline["bytes"], "math": "", "bytes_of": "host memory"})
        self.assertGreater(baseline["bytes"], 0)
        for variant in measured["variants"][1:]:
            self.assertEqual(run["variants"][variant["name"]]["speedup"], variant["speedup"]["value"])

    def test_what_a_pair_reports_is_recorded(self):
        finished = self.record("ch90:judged_metric,ch90:tokens")
        self.assert_code(finished, 0)
        content = self.expectations()
        self.assertEqual(mistakes(content, "expectations"), [])
        (run,) = content["pairs"]["judged_metric"]["runs"]
        slow, doubled = finished.pair("ch90:judged_metric")["variants"]
        for recorded, variant in ((run["baseline_metrics"], slow), (run["variants"]["doubled"]["metrics"], doubled)):
            (metric,) = variant["metrics"]
            self.assertEqual(recorded, {"bytes_moved": {"value": metric["summary"]["median"], "unit": "B", "better": "lower"}})
        (run,) = content["pairs"]["tokens"]["runs"]
        timing = finished.pair("ch90:tokens")["variants"][0]["inference_timing"]
        recorded = run["baseline_metrics"]
        self.assertEqual(set(recorded), {"generated", "ttft", "tpot", "tokens_per_second"})
        self.assertEqual(recorded["ttft"], {"value": timing["ttft_ms"]["median"], "unit": "ms", "better": "lower"})
        self.assertEqual(recorded["tokens_per_second"]["value"], timing["tokens_per_second"])

    def test_earlier_runs_can_be_recorded(self):
        for name in ("first", "second"):
            self.assert_code(self.call("run", "-t", "ch90:good", "--run-id", name, *QUICK), 0)
        finished = self.call("analyze", "first", "second", "--update-expectations", "--expectations-dir", "both")
        self.assert_code(finished, 0)
        runs = json.loads((self.work / "both/host/ch90.json").read_text())["pairs"]["good"]["runs"]
        self.assertEqual([run["run_id"] for run in runs], ["first", "second"])
        self.assert_code(self.call("analyze", "second", "--update-expectations", "--expectations-dir", "both"), 0)
        self.assertEqual(len(json.loads((self.work / "both/host/ch90.json").read_text())["pairs"]["good"]["runs"]), 2, "the same run again")

    def test_reduced_scale_is_refused_and_says_so(self):
        finished = self.record(flags=("--scale", "0.1"))
        self.assert_code(finished, 0)
        self.assertIn("ch90:good is not recorded: it ran at scale 0.1", finished.err)
        self.assertIn("recorded 0 expectations", finished.err)
        self.assertFalse((self.work / "expectations").exists())

    def test_a_refusal_leaves_what_was_recorded(self):
        self.record()
        before = self.expectations()
        self.record(flags=("--scale", "0.1"))
        self.assertEqual(self.expectations(), before)


class ChapterTables(Recorded):
    def test_table_is_written_between_the_marks(self):
        self.record()
        path = self.readme()
        finished = self.tables()
        self.assert_code(finished, 0)
        self.assertIn("chapters/ch90/README.md: written", finished.out)
        text = path.read_text()
        self.assertTrue(text.startswith(f"# Chapter\n\n{BEGIN}\n"), text)
        self.assertTrue(text.endswith(f"{END}\n\nafter\n"), text)
        self.assertNotIn("\nold\n", text)
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| good |")]
        results, details = rows
        pair = self.expectations()["pairs"]["good"]
        self.assertEqual(len(results), 9)
        self.assertEqual((results[1], results[3]), ("host", "doubled"))
        self.assertRegex(results[5], r"^[\d.]+x \(1 run\)$")
        # The variant "added" may come out ahead of the lesson: then the columns name both.
        self.assertRegex(results[6], r"^(added [\d.]+x)?$")
        self.assertRegex(results[8], r"^\d+ %, best \d+ % of library$" if results[6] else r"^\d+ % of library$")
        self.assertEqual(details[1], "host")
        self.assertRegex(details[2], r"^doubled [\d.]+x, added [\d.]+x \([\d.]+x\)$")
        self.assertRegex(details[-1], r"^library [\d.]+x$")
        self.assertRegex(text, rf";\s+recorded\s+{pair['runs'][-1]['date_utc'][:10]}\s+at\s")
        self.assertIn("| equal | not measured yet |", text)
        # The list below the table is wrapped.
        self.assertIn(next(iter(self.expectations()["machines"].values()))["cpu"], " ".join(text.split()))
        self.assertNotIn("stale", text)
        self.assertEqual(self.tables().out, "", "a second time changes nothing")

    def test_metrics_stand_in_a_column_of_their_own(self):
        self.record("ch90:judged_metric")
        (run,) = self.expectations()["pairs"]["judged_metric"]["runs"]
        path = self.readme()
        path.write_text(path.read_text() + "\n7 B<!-- host ch90:judged_metric slow metric:bytes_moved -->\n")
        self.assert_code(self.tables(), 0)
        head, row = ([line for line in path.read_text().splitlines() if line.startswith(f"| {word} |")][-1] for word in ("pair", "judged_metric"))
        place = [cell.strip() for cell in head.split("|")].index("metrics")
        before = run["baseline_metrics"]["bytes_moved"]["value"]
        self.assertEqual(row.split("|")[place].strip(), f"bytes_moved {before:.0f} to {before / 2:.0f} B")
        self.assertIn(f"\n{before:.0f} B<!-- host ch90:judged_metric slow metric:bytes_moved -->\n", path.read_text())
        self.assert_code(self.tables("--check"), 0)

    def test_check_changes_nothing_and_finds_differences(self):
        self.record()
        path, other = self.readme(), self.readme("ch91")
        before = path.read_text()
        finished = self.tables("--check")
        self.assert_code(finished, 1)
        self.assertEqual(self.differing(finished), ["chapters/ch90/README.md", "chapters/ch91/README.md"])
        self.assertEqual(path.read_text(), before)
        self.assert_code(self.tables(), 0)
        self.assert_code(self.tables("--check"), 0)
        other.write_text(other.read_text().replace("not measured yet", "1000x", 1))
        finished = self.tables("--check")
        self.assert_code(finished, 1)
        self.assertEqual(self.differing(finished), ["chapters/ch91/README.md"])
        wrong = next(number for number, line in enumerate(other.read_text().splitlines(), 1) if "1000x" in line)
        self.assertRegex(finished.out, rf"README.md:{wrong}: .*\n  is .*1000x.*\n  should be .*not measured yet")

    def test_figures_in_prose_are_those_recorded(self):
        self.record()
        mark = "<!-- host ch90:good doubled speedup -->"
        path = self.readme(text=f"{BEGIN}\n{END}\nIt is 1.23x{mark} as fast.\n")
        front = self.work / "README.md"
        front.write_text("At best\n4 ms<!-- host ch90:good slow time -->, or 12 ms<!-- not recorded: an example -->.\n")
        self.assert_code(self.tables(), 0)
        self.assertRegex(front.read_text(), r"^At best\n[\d.]+ [num]s<!-- host ch90:good slow time -->, or 12 ms<")
        speedup = self.expectations()["pairs"]["good"]["runs"][0]["variants"]["doubled"]["speedup"]
        (written,) = re.findall(rf"It is ([\d.]+)x{mark} as fast", path.read_text())
        self.assertAlmostEqual(float(written) / speedup, 1, delta=0.01)
        self.assert_code(self.tables("--check"), 0)
        path.write_text(path.read_text().replace(written, "1000"))
        finished = self.tables("--check")
        self.assert_code(finished, 1)
        self.assertEqual(self.differing(finished), ["chapters/ch90/README.md"])
        front.write_text("No 7x<!-- host ch90:good gone speedup -->\n")
        finished = self.tables()
        self.assert_code(finished, 2)
        self.assert_one_line_of_error(finished, "README.md", "ch90:good gone speedup", "nothing of that name is recorded")

    def test_figures_in_a_picture_drawn_by_hand(self):
        self.record()
        self.readme(text=f"{BEGIN}\n{END}\n![m](machine.svg)<!-- picture: drawn by hand: no record says where parts lie -->\n")
        picture = self.work / "chapters/ch90/machine.svg"
        picture.write_text('<svg xmlns="http://www.w3.org/2000/svg"><text>1.23x<!-- host ch90:good doubled speedup --> as fast</text></svg>')
        self.assertEqual(self.differing(self.tables("--check")), ["chapters/ch90/README.md", "chapters/ch90/machine.svg"])
        self.assert_code(self.tables(), 0)
        self.assertNotIn("1.23x", picture.read_text())
        self.assert_code(self.tables("--check"), 0)

    def test_stale_pairs_are_marked(self):
        self.record()
        self.change(lambda content: content["pairs"]["good"]["runs"][0].update(source_digest="0" * 64))
        path = self.readme()
        self.assert_code(self.tables(), 0)
        self.assertRegex(path.read_text(), r"\| good \| host \(\*\*stale\*\*\) \|")
        self.assertIn("--targets ch90 --update-expectations", path.read_text())

    def test_readme_without_marks_is_named_and_kept(self):
        for text in ("# no marks\n", f"{END}\n{BEGIN}\n", f"{BEGIN}\n{END}\n{BEGIN}\n{END}\n", f"{BEGIN}\n"):
            with self.subTest(text):
                path, good = self.readme(text=text), self.readme("ch91")
                checked = self.tables("--check")
                self.assert_code(checked, 1)
                self.assertIn("chapters/ch90/README.md: the table's place is not marked", checked.out)
                finished = self.tables()
                self.assert_code(finished, 2)
                self.assert_one_line_of_error(finished, "chapters/ch90/README.md", BEGIN, END)
                self.assertEqual(path.read_text(), text)
                self.assertIn("not measured yet", good.read_text())

    def test_hostile_text_stays_inside_its_cell(self):
        self.record()
        self.change(lambda content: next(iter(content["machines"].values())).update(cpu=f"a|b\n{END}\n<script>"))
        path = self.readme()
        self.assert_code(self.tables(), 0)
        self.assert_code(self.tables("--check"), 0)
        self.assertNotIn("<script>", path.read_text())
        self.assertEqual(path.read_text().count(END), 1)

    def test_bad_input(self):
        self.assert_one_line_of_error(self.tables(), "chapters")
        path = self.readme()
        before = path.read_text()
        self.assert_one_line_of_error(self.tables("--expectations-dir", "nowhere"), "nowhere")
        self.assert_one_line_of_error(self.tables("--aisp", "nowhere"), "nowhere")
        for content in ("", "{", '{"schema_version": 2, "hardware": "host", "chapter": "ch91", "pairs": {}}', '{"pairs": {"good": 3}}',
                        '{"schema_version": 3, "hardware": "host", "chapter": "ch90", "machines": {}, "pairs": {"good": 3}}', "[" * 100000):
            with self.subTest(content):
                file = self.work / "expectations/host/ch90.json"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(content)
                finished = self.tables()
                self.assert_code(finished, 2)
                self.assert_one_line_of_error(finished, "ch90.json")
                self.assertEqual(path.read_text(), before)


class AnyFolder(Recorded):
    def test_a_folder_of_pairs_of_ones_own_has_its_table(self):
        """The table's place makes a folder one of pairs, whatever its name; folders without it are left alone."""
        for name, text in (("kernels", f"{BEGIN}\n{END}\n"), ("notes", "# Notes\n")):
            (self.work / "pairs" / name).mkdir(parents=True)
            (self.work / "pairs" / name / "README.md").write_text(text)
        self.assert_code(self.tables("--chapters-dir", "pairs"), 0)
        self.assertIn("This chapter has no pairs yet", (self.work / "pairs/kernels/README.md").read_text())
        self.assertEqual((self.work / "pairs/notes/README.md").read_text(), "# Notes\n")

    def test_chapters_that_are_not_all_built_are_left_as_they_are(self):
        self.record()
        path = self.readme()
        before = path.read_text()
        finished = self.tables("--aisp", os.environ["AISP_PART"])
        self.assert_code(finished, 0)
        self.assertRegex(finished.err, r"chapters/ch90/README.md is left as it is: its pairs are not all built; \./setup\.sh --chapters \S+ builds")
        self.assertEqual(path.read_text(), before)

    def test_pairs_that_are_no_more_are_named(self):
        self.record()
        self.change(lambda content: content["pairs"].update(gone=content["pairs"]["good"]))
        self.readme()
        finished = self.tables()
        self.assert_code(finished, 0)
        self.assertIn("host has ch90:gone, which this aisp has not; left out", finished.err)


class TwoReaders(Recorded):
    """Scripts read records, and print numbers, as aisp does."""

    def test_numbers(self):
        self.record()
        milliseconds = (3.333e-7, 9.994e-4, 9.9949e-4, 9.9951e-4, 0.01, 0.09995, 0.5, 0.99949, 0.99951, 1, 2.675, 9.994, 9.996, 12.345, 99.95, 100.5,
                        999.4, 999.6, 1234.5, 98765)

        def change(content):
            good = content["pairs"].pop("good")
            for number, median_ms in enumerate(milliseconds):
                pair = json.loads(json.dumps(good))
                pair["baseline_cost"] = {"flops": 0, "bytes": 1e6, "math": "", "bytes_of": "host memory"}
                pair["runs"][0]["baseline_median_ms"] = median_ms
                content["pairs"][f"p{number}"] = pair

        self.change(change)
        out = self.call("roofline", "--expectations-dir", "expectations").out
        printed = dict(re.findall(r"^ch90:p(\d+) .*\(baseline\)  +(.*?)  +-", out, re.M))
        self.assertEqual(printed, {str(number): display_ms(median_ms) for number, median_ms in enumerate(milliseconds)})
        for median_ms in milliseconds:
            self.assertIn(f" {human_rate(1e6 / median_ms * 1e3, 'B')} ", out)

    def test_metrics(self):
        self.record("ch90:judged_metric")
        for value, unit in ((8, ""), (8.5, "B"), (524288.4, "B"), (812.4, "images/s"), (999.6, "images/s"), (6271000, "images/s"), (0.01234, "%")):
            self.change(lambda content: content["pairs"]["judged_metric"]["runs"][0]["baseline_metrics"]["bytes_moved"].update(value=value, unit=unit))
            out = self.call("explain", "ch90:judged_metric").out
            self.assertRegex(out, rf": slow {re.escape(metric_number(Metric(value, unit)))}, doubled ")

    def test_what_further_runs_are_expected_to_show(self):
        self.record()
        for factors, host_decides in (((1,), False), ((1, 1.01), False), ((1, 1.02, 0.99, 1.01, 1.03, 0.97), False),
                                      ((1, 1.01, 1.02, 1.01, 3), False), ((1, 1.01, 1.02, 1.01, 1), True)):
            def change(content):
                content["pairs"]["good"]["host_decides"] = host_decides
                runs = content["pairs"]["good"]["runs"]
                content["pairs"]["good"]["runs"] = [json.loads(json.dumps(runs[0])) for _ in factors]
                for run, factor in zip(content["pairs"]["good"]["runs"], factors):
                    run["variants"]["doubled"].update(speedup=2 * factor, speedup_low=1.99 * factor, speedup_high=2.02 * factor)

            self.change(change)
            (record,) = read_records(self.work)["ch90:good"]
            doubled = record.variants["doubled"]
            expected = rf"doubled on host: {doubled.speedup:.3g}x, further runs from {doubled.low:.3g} to {doubled.high:.3g}"
            with self.subTest(factors):
                self.assertIn(expected, " ".join(self.call("explain", "ch90:good").out.split()))


class Roofline(Recorded):
    def test_tables_of_a_run_and_of_expectations_agree(self):
        finished = self.record()
        run = self.call("roofline", "latest")
        recorded = self.call("roofline", "--expectations-dir", "expectations")
        self.assert_code(run, 0)
        self.assertEqual(run.out, recorded.out)
        document = json.loads(self.call("roofline", "latest", "--json").out)
        self.assertEqual(mistakes(document, "roofline"), [])
        ((pair,),) = (roofline["pairs"] for roofline in document["rooflines"])
        self.assertEqual([variant["name"] for variant in pair["variants"] if variant["is_lesson"]], ["doubled"])
        self.assertEqual(mistakes(json.loads(self.call("roofline", "--expectations-dir", "expectations", "--json").out), "roofline"), [])
        doubled = next(v for v in finished.pair("ch90:good")["variants"] if v["name"] == "doubled")
        row = next(line for line in run.out.splitlines() if " doubled" in line)
        self.assertIn(f"  {doubled['flops'] / doubled['bytes']:.3f} ", row)
        self.assertIn("FLOP/s", row)
        self.assertIn("no ceilings of this machine are known", run.out)

    def test_picture(self):
        self.record()
        self.record("ch90:unordered_output")
        finished = self.call("roofline", "--expectations-dir", "expectations", "--svg", "roofline.svg")
        self.assert_code(finished, 0)
        self.assertIn("1 pair without FLOPs per byte of memory is left out", finished.err)
        text = (self.work / "roofline.svg").read_text()
        picture = tree.fromstring(text)
        self.assertEqual(picture.tag, SVG + "svg")
        self.assertEqual([e for e in picture.iter() if e.tag in (SVG + "script", SVG + "image", SVG + "foreignObject")], [])
        self.assertNotIn("http", text.replace("http://www.w3.org/2000/svg", ""))
        self.assertRegex(text, "prefers-color-scheme: *dark")
        self.assertTrue([e.text for e in picture.iter(SVG + "text") if (e.text or "").startswith("ch90:good ")])
        tips = [e.text for e in picture.iter(SVG + "title")]
        for name in ("slow", "doubled", "added", "library"):
            self.assertTrue(any(tip.startswith(f"ch90:good {name}: ") for tip in tips), name)
        self.assertNotIn("unordered_output", text)
        again = self.call("roofline", "latest", "--svg", "-")
        self.assert_code(again, 5)
        self.assert_one_error_line(again, "nothing to draw")

    def test_ceilings_are_roofs_and_links_are_no_memory(self):
        self.record()

        def gpu(content):
            pairs = content["pairs"]
            pairs["good"]["ceilings"] = {"memory_bytes_s": 1e12, "flops_s": {"fp32": 1e13}, "source": "measured & made <up>"}
            pairs["linked"] = json.loads(json.dumps(pairs["good"]))
            for cost in [pairs["linked"]["baseline_cost"], *(v["cost"] for v in pairs["linked"]["variants"].values())]:
                cost["bytes_of"] = "host to device"

        self.change(gpu)
        out = self.call("roofline", "--expectations-dir", "expectations").out
        self.assertIn("memory 1.00 TB/s, fp32 10.0 TFLOP/s (measured & made <up>)", out)
        self.assertIn("(host to device)", out)
        finished = self.call("roofline", "--expectations-dir", "expectations", "--svg", "-")
        texts = [e.text for e in tree.fromstring(finished.out).iter(SVG + "text")]
        for roof in ("memory 1.00 TB/s", "fp32 10.0 TFLOP/s"):
            self.assertIn(roof, texts)
        self.assertIn("1 pair", finished.err)

    def test_bad_input(self):
        (self.work / "empty").mkdir()
        for arguments, code, word in ((("roofline",), 2, "--expectations-dir"), (("roofline", "nothing"), 2, "nothing"),
                                      (("roofline", "--expectations-dir", "nowhere"), 2, "nowhere"),
                                      (("roofline", "--expectations-dir", "empty"), 5, "no pair"),
                                      (("roofline", "latest", "--expectations-dir", "x"), 2, "--expectations-dir"),
                                      (("roofline", "--expectations-dir", "empty", "--chapter", "ch42"), 2, "ch42")):
            with self.subTest(arguments):
                finished = self.call(*arguments)
                self.assert_code(finished, code)
                self.assert_one_error_line(finished, word)


if __name__ == "__main__":
    unittest.main()
