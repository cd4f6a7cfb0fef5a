# SPDX-License-Identifier: Apache-2.0
"""From recorded expectations to the exit status that turns a pipeline red."""
import csv
import json
import re
import unittest
import xml.etree.ElementTree as ElementTree

from harness import QUICK, SOURCE, EndToEnd

PAGE = SOURCE / "docs/report-formats.md"


class Analyze(EndToEnd):
    def setUp(self):
        super().setUp()
        self.assert_code(self.measure("first", "--update-expectations"), 0)
        self.assert_code(self.measure("second"), 0)
        self.file = self.work / "expectations/host/ch90.json"

    def measure(self, run_id, *flags, targets="ch90:good"):
        return self.call("run", "-t", targets, *QUICK, "--run-id", run_id, *flags)

    def doctor(self, factor):
        """Another past: speedups as if they had been `factor` times what they are, and surely so; below 1, as they are, with room
        for a loaded machine."""
        document = json.loads(self.file.read_text())
        for variant in document["pairs"]["good"]["runs"][0]["variants"].values():
            if factor > 1:
                variant["speedup"] *= factor
                variant["speedup_low"], variant["speedup_high"] = 0.9 * variant["speedup"], 1.1 * variant["speedup"]
            else:
                variant["speedup_low"] *= 0.1
                variant["speedup_high"] *= 10
        self.file.write_text(json.dumps(document))

    def test_an_unchanged_run_is_good(self):
        self.doctor(0.1)  # host times of a loaded machine vary more than any interval knows
        finished = self.call("analyze", "second")
        self.assert_code(finished, 0)
        # Absolute times may drift on a busy machine; the ratio must have held.
        self.assertRegex(finished.out, "  (ok|drifted)")
        self.assertIn("2 compared", finished.out)
        self.assert_code(self.measure("third", "--gate"), 0)
        self.assertFalse(list((self.artifacts / "third").glob("confirmation_*")), "nothing was in doubt")

    def test_a_regression_is_3_everywhere_it_is_read(self):
        self.doctor(50)
        finished = self.call("analyze", "second", "--output-csv", "out/proof.csv", "--junit", "junit.xml", "--json", "a.json", "--github",
                             "--github-action-benchmark", "gab.json", "--google-benchmark", "google.json")
        self.assert_code(finished, 3)
        self.assertIn("unconfirmed", finished.out)
        self.assertRegex(finished.out, r"(?m)^::error title=ch90%3Agood doubled on host%3A regressed::.* %25\)")
        with open(self.work / "out/proof.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([row["finding"] for row in rows], ["regressed", "regressed"])
        section = PAGE.read_text().split("## proof_of_benefit.csv")[1].split("\n## ")[0]
        self.assertEqual(list(rows[0]), re.findall(r"(?m)^\| `([a-z_]+)` \|", section))
        suites = ElementTree.parse(self.work / "junit.xml").getroot()
        self.assertEqual(suites.get("failures"), "2")
        self.assertEqual(len(suites.findall("./testsuite/testcase/failure")), 2)
        self.assertEqual(json.loads((self.work / "a.json").read_text())["exit_status"], 3)
        self.assertEqual(len(json.loads((self.work / "gab.json").read_text())), 2)
        benchmarks = json.loads((self.work / "google.json").read_text())["benchmarks"]
        for pair in json.loads((self.artifacts / "second/benchmark_test_results.json").read_text())["pairs"]:
            for variant in pair["variants"]:
                rows = [row for row in benchmarks if row["run_name"] == f"{pair['target']}/{variant['name']}"]
                repetitions = [row for row in rows if row["run_type"] == "iteration"]
                samples = variant["timing"]["raw_times_ms"]
                self.assertEqual([row["repetition_index"] for row in repetitions], list(range(len(samples))))
                for row, sample in zip(repetitions, samples):
                    self.assertAlmostEqual(row["real_time"] / sample, 1000)
                self.assertEqual({(row["time_unit"], row["repetitions"]) for row in rows}, {("us", len(samples))})
                (median,) = [row for row in rows if row.get("aggregate_name") == "median"]
                self.assertAlmostEqual(median["real_time"] / variant["timing"]["median_ms"], 1000)
        self.assert_code(self.call("analyze", "second", "--require-confirmation"), 0)
        self.assert_code(self.call("analyze", "first", "second", "--require-confirmation"), 3)
        self.assert_code(self.call("analyze", "second", "artifacts/second", "--require-confirmation"), 0)

    def test_times_for_google_benchmark_need_no_expectations(self):
        (self.work / "expectations").rename(self.work / "elsewhere")
        self.assert_code(self.call("analyze", "second", "--google-benchmark", "google.json"), 0)
        self.assertTrue(json.loads((self.work / "google.json").read_text())["benchmarks"])
        for words in (("--json", "a.json"), ("--expectations-dir", "expectations"), ("--github",)):
            finished = self.call("analyze", "second", "--google-benchmark", "again.json", *words)
            self.assert_code(finished, 2)
            self.assertIn("there are no expectations to compare with", finished.err)
            self.assertTrue((self.work / "again.json").exists())

    def test_the_gate_confirms_by_a_rerun(self):
        self.doctor(50)
        finished = self.measure("gated", "--gate", targets="ch90:good,ch90:equal")
        self.assert_code(finished, 3)
        self.assertIn("measuring again", finished.err)
        self.assertIn("(confirmed)", finished.out)
        reruns = list((self.artifacts / "gated").glob("confirmation_*"))
        self.assertEqual(len(reruns), 1)
        manifest = json.loads((reruns[0] / "manifest.json").read_text())
        self.assertEqual(manifest["targets"], ["ch90:good"], "only what regressed is measured again")
        first = json.loads((self.artifacts / "gated" / "manifest.json").read_text())
        self.assertNotEqual(manifest["seed"], first["seed"], "a loss that one draw of the inputs causes is not confirmed by the same draw")
        self.assertIn("(confirmed)", self.call("analyze", "gated").out)

    def test_a_failure_is_1(self):
        self.measure("wrong", targets="ch94:wrong_result,ch92:segfault")
        finished = self.call("analyze", "wrong", "--junit", "junit.xml")
        self.assert_code(finished, 1)
        self.assertEqual(ElementTree.parse(self.work / "junit.xml").getroot().get("errors"), "2")

    def test_a_gate_without_expectations_is_no_green_one(self):
        self.assert_code(self.call("analyze", "second", "--expectations-dir", "elsewhere"), 2)
        finished = self.measure("none", "--gate", "--expectations-dir", "elsewhere")
        self.assert_code(finished, 2)
        self.assertFalse((self.artifacts / "none").exists())
        self.assert_code(self.measure("both", "--gate", "--update-expectations"), 2)

    def test_a_gate_that_compared_nothing_is_no_green_one(self):
        finished = self.measure("fresh", "--gate", targets="ch90:equal")
        self.assert_code(finished, 5)
        self.assertIn("nothing was compared (no expectation of this hardware)", finished.err)
        self.assertIn("status 5", finished.err)
        finished = self.measure("tiny", "--gate", "--scale", "0.5")
        self.assert_code(finished, 5)
        self.assertIn("nothing was compared (pairs that did not run or must not be compared)", finished.err)
        self.assert_code(self.call("analyze", "fresh", "--json", "a.json"), 5)
        self.assertEqual(json.loads((self.work / "a.json").read_text())["exit_status"], 5)
        self.doctor(0.1)
        finished = self.measure("both", "--gate", targets="ch90:good,ch90:equal")
        self.assert_code(finished, 0)
        self.assertNotIn("nothing was compared", finished.err)

    def test_bad_files_cost_one_line_each(self):
        good = {name: (self.artifacts / "second" / name).read_bytes() for name in ("results.jsonl", "manifest.json")}
        header, line = good["results.jsonl"].splitlines()[:2]
        for name, content, words in (
                ("results.jsonl", b"", ("results.jsonl", "empty")), ("results.jsonl", b"\0\1\xff" * 99 + b"\n", ("results.jsonl:1",)),
                ("manifest.json", b"", ("manifest.json",)), ("manifest.json", b"[" * 100000, ("manifest.json", "deeply")),
                ("manifest.json", b'{"seed": 1e99999}', ("manifest.json",)), ("manifest.json", b'{"seed": "x"}', ("manifest.json", "seed")),
                ("manifest.json", b'{"seed": 1, "seed": 2}', ("manifest.json", "twice")),
                ("manifest.json", good["manifest.json"][:200], ("manifest.json", "not valid JSON")),
                ("results.jsonl", good["results.jsonl"].replace(b'"chapter":"ch90"', b'"chapter":"../../x"'), ("not the target",)),
                ("results.jsonl", line + b"\n" + line + b"\n", ("results.jsonl:1", "first line")),
                ("results.jsonl", header + b"\n" + line[:50] + b"\n", ("results.jsonl:2",))):
            with self.subTest(name=name, content=content[:40]):
                for other, text in good.items():
                    (self.artifacts / "second" / other).write_bytes(text)
                (self.artifacts / "second" / name).write_bytes(content)
                finished = self.call("analyze", "second", "--json", "out.json")
                self.assert_code(finished, 2)
                self.assert_one_error_line(finished, *words)
                self.assertEqual(len(finished.err.splitlines()), 1)
                self.assertLess(len(finished.err), 600)
                self.assertFalse((self.work / "out.json").exists())
                self.assertEqual((self.artifacts / "second" / name).read_bytes(), content)
        self.file.write_text('{"pairs": {"good": 3}}')
        for other, text in good.items():
            (self.artifacts / "second" / other).write_bytes(text)
        finished = self.call("analyze", "second")
        self.assert_code(finished, 2)
        self.assert_one_error_line(finished, "ch90.json", "pairs.good")

    def test_compare(self):
        finished = self.call("compare", "first", "second", "--all", "--json", "c.json")
        self.assertIn(finished.code, (0, 3), finished.err)
        metrics = {row["metric"] for row in json.loads((self.work / "c.json").read_text())["metrics"]}
        self.assertLessEqual({"time", "speedup", "host_peak_rss"}, metrics)
        alone = self.call("compare", "second")
        self.assert_code(alone, 0)
        self.assertRegex(alone.out, r"ch90:good +doubled +time .*better")
        self.assert_code(self.call("compare", "first", "nowhere"), 2)

    def test_history(self):
        finished = self.call("analyze", "--history", "--json", "-")
        self.assert_code(finished, 0)
        series = json.loads(finished.out)["series"]
        self.assertEqual({len(one["points"]) for one in series}, {2})


if __name__ == "__main__":
    unittest.main()
