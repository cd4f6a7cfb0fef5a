# SPDX-License-Identifier: Apache-2.0
"""The artifacts and the screen after a run of correct pairs."""
import csv
import json
import re
import unittest
from pathlib import Path

from harness import EndToEnd, everything_said, results_log, variant
from report_page import opened


class GoodPairs(EndToEnd):
    def test_a_pair_with_variants_and_a_library(self):
        finished = self.run_pairs("ch90:good")
        self.assert_code(finished, 0)
        pair = finished.pair("ch90:good")
        self.assertEqual(pair["status"], "passed", everything_said(pair))
        self.assertEqual([v["name"] for v in pair["variants"]], ["slow", "doubled", "added", "library"])
        self.assertEqual([v["role"] for v in pair["variants"]], ["baseline", "optimized", "optimized", "library"])
        self.assertIn(pair["best"], ("doubled", "added"))
        doubled = variant(pair, "doubled")
        self.assertGreater(doubled["speedup"]["value"], 2)
        self.assertEqual(doubled["speedup"]["verdict"], "faster")
        self.assertLessEqual(doubled["speedup"]["low"], doubled["speedup"]["value"])
        self.assertGreaterEqual(len(doubled["timing"]["raw_times_ms"]), 5)
        self.assertTrue(doubled["accuracy"]["bitwise_repeatable"])
        self.assertEqual([name for name, stage in pair["watchdog"].items() if not stage["finished"]], [])

    def test_what_nobody_has_run(self):
        finished = self.run_pairs("ch88:untried")
        self.assert_code(finished, 0)
        self.assertEqual([v["name"] for v in finished.pair("ch88:untried")["variants"] if v["not_run"]], ["elsewhere"])
        self.assertIn("; not run: elsewhere", finished.out)
        rows = list(csv.DictReader((finished.folder / "results.csv").read_text().splitlines()))
        self.assertEqual([row["variant"] for row in rows if row["not_run"] == "yes"], ["elsewhere"])
        self.assert_code(self.call("report", "latest", "--html"), 0)
        self.assertIn("not run", (finished.folder / "benchmark_test_results.md").read_text())
        self.assertIn("not run", opened((finished.folder / "report.html").read_text()))

    def test_threads_of_openmp_that_spin(self):
        finished = self.run_pairs("ch88:open_mp")
        pair = finished.pair("ch88:open_mp")
        if pair["status"] == "skipped":
            self.skipTest(pair["reason"])
        self.assertEqual(pair["status"], "passed", everything_said(pair))
        self.artifacts.rename(self.work / "first")
        spinning = self.run_pairs("ch88:open_mp", env={"OMP_WAIT_POLICY": "active"})
        self.assertIn("OMP_WAIT_POLICY=passive", everything_said(spinning.pair("ch88:open_mp")) + spinning.out)

    def test_a_ladder(self):
        finished = self.run_pairs("ch88:ladder", flags=("--iterations", "20", "--update-expectations"))
        self.assert_code(finished, 0)
        pair = finished.pair("ch88:ladder")
        self.assertEqual(pair["status"], "passed", everything_said(pair))
        self.assertEqual([(v["name"], v["role"]) for v in pair["variants"]],
                         [("many", "baseline"), ("some", "optimized"), ("few", "optimized"), ("aside", "optimized"), ("as_many", "control"),
                          ("half", "control"), ("library", "library"), ("rounding", "library")])
        self.assertEqual((pair["lesson"], pair["best"]), ("some", "few"))
        some, few, aside, half = (variant(pair, name) for name in ("some", "few", "aside", "half"))
        with self.subTest("gains"):
            self.assertEqual([v.get("gain", {}).get("over") for v in pair["variants"]], [None, "many", "some", "some", None, None, None, None])
            self.assertAlmostEqual(some["gain"]["value"], some["speedup"]["value"], delta=1e-9)
            for step in (few, aside):
                self.assertAlmostEqual(step["gain"]["value"], step["speedup"]["value"] / some["speedup"]["value"], delta=0.02 * step["gain"]["value"])
                self.assertTrue(step["gain"]["low"] <= step["gain"]["value"] <= step["gain"]["high"])
        with self.subTest("shares: a library that rounds more counts only beside variants that do"):
            self.assertEqual([v.get("library_share", {}).get("library") for v in pair["variants"]], ["library"] * 4 + [None] * 4)
            library = variant(pair, "library")
            self.assertAlmostEqual(some["library_share"]["percent"], 100 * some["speedup"]["value"] / library["speedup"]["value"],
                                   delta=0.02 * some["library_share"]["percent"])
        with self.subTest("a control without a result is timed, and nothing of it is verified"):
            self.assertEqual([v["name"] for v in pair["variants"] if not v["computes_output"]], ["half"])
            self.assertNotIn("accuracy", half)
            self.assertEqual((half["output_digests"], half["sample_checks"]["compared"]), ({}, 0))
            self.assertIn("accuracy", variant(pair, "as_many"))
            self.assertGreater(half["speedup"]["value"], few["speedup"]["value"], "and it is the best of nothing")
        with self.subTest("what the reports say"):
            line = next(line for line in finished.out.splitlines() if line.startswith("ch88:ladder"))
            self.assertRegex(line, r"^ch88:ladder +some +[\d.]+x \[.* faster +\d+ % of library; best [\d.]+x by few; not verified: half \(control\)$")
            self.assertNotIn("geometric mean", finished.out, "of a single pair")
            summary = (finished.folder / "benchmark_test_results.md").read_text()
            for words in ("some (lesson)", "few (best)", "as_many (control)", "half (control, not verified)", "library (library)"):
                self.assertIn(f"| {words} |".replace("_", "\\_") if f"| {words} |" not in summary else f"| {words} |", summary)
            lines = (finished.folder / "results.csv").read_text().splitlines()
            rows = {row["variant"]: row for row in csv.DictReader(lines)}
            self.assertEqual([name for name, row in rows.items() if row["is_lesson"]], ["some"])
            self.assertEqual([name for name, row in rows.items() if row["computes_output"] == "no"], ["half"])
            self.assertEqual((rows["few"]["gain_over"], rows["few"]["library"]), ("some", "library"))
        with self.subTest("what is expected"):
            again = self.run_pairs("ch88:ladder", flags=("--iterations", "20", "--run-id", "again"))
            judged = {row["variant"]: row for row in json.loads(self.call("analyze", "again", "--json", "-").out)["rows"]}
            self.assert_code(again, 0)
            self.assertEqual(set(judged), {"some", "few", "aside"}, "controls and libraries are held against nothing")
            self.assertEqual([name for name, row in judged.items() if row["lesson"]], ["some"])

    def test_host_pairs_have_neither_floor_nor_cache_nor_start(self):
        finished = self.run_pairs("ch90:good")
        pair = finished.pair("ch90:good")
        self.assertEqual((pair["start"], pair["cache"]), ("none", "none"))
        self.assertEqual([v["name"] for v in pair["variants"] if "floor" in v], [], "no ceiling of a host is known")
        self.assertEqual(re.findall(r"% of (\w+)", re.sub(r".*: warning: .*", "", finished.out)), ["library"])
        page = (finished.folder / "ch90_good/results/benchmark_test_results.md").read_text()
        self.assertIn("Timed by the host's clock, judged by", page)
        self.assertNotRegex(page, r"% of (?!\d|this machine|library|the CPU time)", "only the pace of the sampling is a part of something")

    def test_a_few_samples_prove_nothing(self):
        for iterations, verdict in ((1, "cannot_tell"), (4, "cannot_tell"), (5, "faster")):
            finished = self.call("run", "-t", "ch90:good", "--fixed-iterations", "--iterations", str(iterations), "--run-id", f"run{iterations}")
            doubled = variant(results_log(self.artifacts / f"run{iterations}")[0], "doubled")
            self.assertEqual(doubled["speedup"]["verdict"], verdict)
            self.assertIn(verdict.replace("_", " "), finished.out)
            self.assertIn(verdict, (self.artifacts / f"run{iterations}" / "results.csv").read_text())

    def test_equal_variants_have_no_verdict_in_their_favour(self):
        finished = self.run_pairs("ch90:equal", flags=("--iterations", "20"))
        self.assertLess(abs(variant(finished.pair("ch90:equal"), "again")["speedup"]["value"] - 1), 0.2)

    def test_slower_variant_is_called_slower_and_is_no_failure(self):
        finished = self.run_pairs("ch90:slower")
        self.assert_code(finished, 0)
        self.assertEqual(variant(finished.pair("ch90:slower"), "doubled")["speedup"]["verdict"], "slower")

    def test_metric_that_judges(self):
        pair = self.run_pairs("ch90:judged_metric").pair("ch90:judged_metric")
        self.assertEqual(pair["judged_by"], "bytes_moved")
        self.assertAlmostEqual(variant(pair, "doubled")["speedup"]["value"], 2, places=3)

    def test_tokens(self):
        pair = self.run_pairs("ch90:tokens").pair("ch90:tokens")
        inference = variant(pair, "slow")["inference_timing"]
        self.assertGreater(inference["requests"], 0)
        self.assertEqual(inference["tokens"] % 8, 0)
        self.assertGreater(inference["ttft_ms"]["mean"], 0)
        self.assertGreater(inference["tpot_ms"]["mean"], 0)
        self.assertNotIn("goodput", inference)

    def test_goodput_under_latency_targets(self):
        for target, percent in (("1000000", 100), ("0.0000001", 0)):
            name = f"target{percent}"
            finished = self.run_pairs("ch90:tokens", flags=("--ttft-target-ms", target, "--tpot-target-ms", "1000000", "--run-id", name))
            self.assert_code(finished, 0)
            inference = variant(results_log(self.artifacts / name)[0], "slow")["inference_timing"]
            self.assertEqual(inference["goodput"]["percent"], percent)
            self.assertEqual(inference["goodput"]["requests_per_second"] > 0, percent > 0)
            self.assertEqual(inference["goodput"]["all_requests"] % inference["requests"], 0)
            self.assertRegex(finished.out, f"tokens +slow +TTFT .* 8 tokens of 2 requests, .*goodput {percent} %")

    def test_energy_of_the_host_is_declined_in_one_line(self):
        finished = self.run_pairs("ch90:good", flags=("--energy",))
        self.assert_code(finished, 0)
        pair = finished.pair("ch90:good")
        self.assertEqual([lost["text"] for lost in pair["lost"] if lost["kind"] == "energy"],
                         ["no joules on the host: only root may read the processor's energy counter (RAPL)"])
        self.assertFalse(any("energy" in v for v in pair["variants"]))

    def test_peak_memory_of_the_host_is_that_of_each_variant(self):
        pair = self.run_pairs("ch90:good").pair("ch90:good")
        self.assertTrue(all(v["memory"]["host_peak_rss_bytes"] > 1 << 20 for v in pair["variants"]), pair["variants"])
        self.assertIn("## Memory", (self.artifacts / next(self.artifacts.iterdir()).name / "ch90_good/results/benchmark_test_results.md").read_text())

    def test_unordered_output(self):
        self.assert_code(self.run_pairs("ch90:unordered_output"), 0)

    def test_artifacts(self):
        finished = self.run_pairs("ch90")
        folder = finished.folder
        suite = json.loads((folder / "benchmark_test_results.json").read_text())
        self.assertEqual([pair["target"] for pair in suite["pairs"]], sorted(pair["target"] for pair in suite["pairs"]))
        self.assertIn("ch90", (folder / "benchmark_test_results.md").read_text())
        own = folder / "ch90_good" / "results"
        self.assertTrue((own / "benchmark_test_results.json").exists() and (own / "benchmark_test_results.md").exists(), list(own.iterdir()))
        effective = json.loads((folder / "effective_configuration.json").read_text())
        self.assertEqual(effective["iterations"], {"value": 5, "origin": "flag"})
        self.assertEqual(effective["seed"]["origin"], "drawn")
        self.assertTrue((folder / "manifest.json").exists())
        self.assertEqual([path.name for path in folder.iterdir() if path.name.startswith(".scratch")], [])
        self.assertEqual({line["target"] for line in finished.lines()}, {pair["target"] for pair in suite["pairs"]})

    def test_in_process(self):
        finished = self.run_pairs("ch90:good", flags=("--in-process",))
        self.assert_code(finished, 0)
        self.assertEqual(finished.pair("ch90:good")["status"], "passed")

    def test_reproducible_runs_give_equal_outputs(self):
        digests = []
        for name in ("first", "second"):
            self.run_pairs("ch90", flags=("--reproducible", "--run-id", name))
            pairs = results_log(self.artifacts / name)
            self.assertEqual({pair["seed"] for pair in pairs}, {42})
            digests.append({(pair["target"], v["name"]): v["output_digests"] for pair in pairs for v in pair["variants"]})
        self.assertEqual(digests[0], digests[1])
        self.assertTrue(all(digests[0].values()))
        self.assertRegex(self.call("compare", "first", "second").out, r"Outputs: \d+ outputs bit for bit the same")

    def told(self, run_id, *flags):
        """The words of each line of the log of a pair that tells its inputs and its folders; equal neighbours once."""
        self.assert_code(self.run_pairs("ch88:tells", flags=("--run-id", run_id, *flags)), 0)
        lines = (self.artifacts / run_id / "ch88_tells/output.log").read_text().splitlines()
        return [line.split() for line, before in zip(lines, ["", *lines]) if line != before]

    def test_a_seed_gives_the_inputs_of_the_verification_and_only_reproducible_those_of_the_rounds(self):
        def inputs(*arguments):
            return [words[1] for words in self.told(*arguments) if words[0] == "input"]
        first, second = inputs("first", "--seed", "5"), inputs("second", "--seed", "5")
        self.assertEqual(first[0], second[0], "before the rounds")
        self.assertEqual(first[-1], second[-1], "after them")
        self.assertEqual(len(set(first) & set(second)), 2)
        self.assertGreater(len(first), 3)
        third, fourth = inputs("third", "--reproducible"), inputs("fourth", "--reproducible")
        self.assertEqual(third[:3], fourth[:3])

    def test_a_pair_of_the_host_has_a_home_of_its_own(self):
        own = {"HOME": str(self.work), "TMPDIR": str(self.work)}
        places = []
        for run_id in ("first", "second"):
            self.assert_code(self.run_pairs("ch88:tells", flags=("--run-id", run_id), env=own), 0)
            log = (self.artifacts / run_id / "ch88_tells/output.log").read_text()
            places += [line.split()[1] for line in log.splitlines() if line.startswith(("HOME", "TMPDIR"))]
        self.assertGreaterEqual(len(places), 4)
        self.assertEqual(len(set(places)), len(places))
        for place in places:
            self.assertTrue(place.startswith(str(self.work)) and place != str(self.work), place)
            self.assertFalse(Path(place).exists(), place)

    # A run verifies again with other inputs, and a pair like this at two shapes; aisp verify does it once.
    def test_digests_are_of_the_runs_own_seed_and_of_the_timed_shape(self):
        for command in ("run", "verify"):
            self.assert_code(self.call(command, "--targets", "ch90:shaped,ch90:good", "--seed", "5", "--run-id", command), 0)
        digests = [{(pair["target"], v["name"]): v["output_digests"] for pair in results_log(self.artifacts / name) for v in pair["variants"]}
                   for name in ("run", "verify")]
        self.assertEqual(digests[0], digests[1])
        self.assertEqual(len({tuple(outputs.values()) for (target, _), outputs in digests[0].items() if target == "ch90:shaped"}), 1)
        self.assertTrue(all(digests[0].values()))

    def test_compare_names_outputs_with_other_bits(self):
        for name in ("first", "second"):
            self.run_pairs("ch90:good", flags=("--run-id", name, "--seed", "5"))
        file = self.artifacts / "second/results.jsonl"
        digest = variant(results_log(self.artifacts / "second")[0], "doubled")["output_digests"]["output 1"]
        header, line = file.read_text().splitlines()
        pair = json.loads(line)
        variant(pair, "doubled")["output_digests"]["output 1"] = digest[::-1] + "0"
        file.write_text(f"{header}\n{json.dumps(pair)}\n")
        self.assertIn("Outputs with other bits, of 4 outputs:\n  ch90:good doubled, output 1\n", self.call("compare", "first", "second").out)
        changed = json.loads(self.call("compare", "first", "second", "--json", "-").out)
        self.assertEqual(changed["outputs_changed"], [{"target": "ch90:good", "variant": "doubled", "output": "output 1", "bitwise_repeatable": True}])
        self.assertEqual(changed["outputs_equal"], 3)
        other_seed = self.run_pairs("ch90:good", flags=("--run-id", "third", "--seed", "7"))
        self.assert_code(other_seed, 0)
        self.assertNotIn("Outputs", self.call("compare", "first", "third").out)

    def test_scaled_results_are_marked(self):
        self.assertEqual(self.run_pairs("ch90:good", flags=("--scale", "0.25")).pair("ch90:good")["scale"], 0.25)

    def test_fixed_iterations_and_percentiles(self):
        pair = self.run_pairs("ch90:good", flags=("--fixed-iterations", "--percentiles", "99.9")).pair("ch90:good")
        timing = variant(pair, "slow")["timing"]
        self.assertEqual(len(timing["raw_times_ms"]), 5)
        self.assertEqual(pair["stopped_because"], "fixed iterations")
        self.assertIn("99.9", json.dumps(timing))

    def test_verify_runs_each_variant_once_and_times_nothing(self):
        finished = self.call("verify", "--targets", "ch90:good")
        self.assert_code(finished, 0)
        self.assertIn("registered", finished.out)
        pair = finished.pair("ch90:good")
        self.assertEqual(pair["status"], "passed")
        self.assertTrue(variant(pair, "doubled").get("accuracy"))
        self.assertFalse(variant(pair, "doubled").get("timing"))

    def test_verify_fails_for_a_wrong_pair(self):
        self.assert_code(self.call("verify", "--targets", "ch94:wrong_result"), 1)


if __name__ == "__main__":
    unittest.main()
