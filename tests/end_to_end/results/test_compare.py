# SPDX-License-Identifier: Apache-2.0
"""`aisp compare` of one, two and several runs, and `aisp analyze --only`."""
import json
import unittest

from harness import EndToEnd


class Compare(EndToEnd):
    def setUp(self):
        super().setUp()
        self.assert_code(self.run_pairs("ch90:good", "ch90:equal", flags=("--run-id", "a", "--update-expectations")), 0)
        # b takes twice as long, c half as long.
        for name, factor in (("b", 2), ("c", 0.5)):
            self.copy("a", name, factor)

    def copy(self, source, name, factor):
        folder = self.artifacts / name
        folder.mkdir()
        for file in ("manifest.json", "effective_configuration.json"):
            (folder / file).write_bytes((self.artifacts / source / file).read_bytes())
        header, *lines = (self.artifacts / source / "results.jsonl").read_text().splitlines()
        for i, line in enumerate(lines):
            pair = json.loads(line)
            for variant in pair["variants"]:
                timing = variant["timing"]
                timing["raw_times_ms"] = [time * factor for time in timing["raw_times_ms"]]
                for key in timing:
                    if key.endswith("_ms") and isinstance(timing[key], float):
                        timing[key] *= factor
            lines[i] = json.dumps(pair)
        (folder / "results.jsonl").write_text("\n".join([header, *lines]) + "\n")

    def test_two_runs_end_with_a_line_for_all(self):
        finished = self.call("compare", "a", "c")
        self.assertRegex(finished.out.splitlines()[-1], r"^c is 2\.00x a over \d kernels of 2 pairs \(geometric mean; from 2\.00x for ch90:\w+ \w+ to ")
        overall = json.loads(self.call("compare", "a", "c", "--json", "-").out)["overall"]
        self.assertAlmostEqual(overall["geometric_mean"], 2, places=6)
        self.assertEqual(overall["pairs"], 2)

    def test_several_runs_have_a_table_and_a_line_each(self):
        finished = self.call("compare", "a", "b", "c", "--all")
        for line in ("b compared with a", "c compared with a"):
            self.assertIn(line, finished.out.splitlines())
        self.assertEqual(finished.out.count("pair        variant"), 2)
        first, second = finished.out.splitlines()[-2:]
        self.assertTrue(first.startswith("b is 0.500x a over "), first)
        self.assertTrue(second.startswith("c is 2.00x a over "), second)
        document = json.loads(self.call("compare", "a", "b", "c", "--json", "-").out)
        self.assertEqual([comparison["after"].split("/")[-1] for comparison in document["comparisons"]], ["b", "c"])
        self.assertEqual({comparison["before"].split("/")[-1] for comparison in document["comparisons"]}, {"a"})

    def test_the_worst_run_decides(self):
        self.assertEqual(self.call("compare", "a", "c").code, 0)
        self.assertEqual(self.call("compare", "a", "a", "a").code, 0)
        worse = self.call("compare", "a", "b").code
        self.assertEqual(self.call("compare", "a", "b", "c").code, worse)
        self.assertEqual(self.call("compare", "a", "c", "b").code, worse)

    def test_nothing_in_common_with_one_of_them_is_no_failure(self):
        self.assert_code(self.run_pairs("ch90:tokens", flags=("--run-id", "other")), 0)
        self.assertEqual(self.call("compare", "a", "other").code, 5)
        self.assertEqual(self.call("compare", "a", "other", "a").code, 0)

    def test_only_some_findings(self):
        everything = self.call("analyze", "a")
        self.assertIn("ch90:good", everything.out)
        few = self.call("analyze", "a", "--only", "regressed, failed")
        self.assertEqual(few.code, everything.code)
        self.assertEqual(few.out.splitlines(), everything.out.splitlines()[-1:], "the summary is of all rows")
        self.assertEqual(self.call("analyze", "a", "--only", "ok,new,skipped,stale", "--only", "improved,other_machine").out, everything.out)
        self.usage_error_of_a_run("--only", "regresed")

    def usage_error_of_a_run(self, *flags):
        finished = self.call("analyze", "a", *flags)
        self.assert_code(finished, 2)
        self.assert_one_error_line(finished, "'regresed' is no finding", "regressed")


if __name__ == "__main__":
    unittest.main()
