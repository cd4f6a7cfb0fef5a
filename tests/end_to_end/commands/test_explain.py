# SPDX-License-Identifier: Apache-2.0
"""`aisp explain`: every word of the reports, the same in the manual, and pairs."""
import json
import re
import unittest

from harness import AISP, FIXTURES, SOURCE, EndToEnd
from schemas import mistakes

METHOD = (SOURCE / "docs/method.md").read_text()


class Explain(EndToEnd):
    def words(self):
        finished = self.call("explain", "--json")
        self.assert_code(finished, 0)
        return json.loads(finished.out)

    def test_answers_are_what_the_schema_says(self):
        for arguments in ((), ("memory",), ("ch10:cluster",), ("ch03:lock_contention",)):
            with self.subTest(arguments):
                finished = self.call("explain", *arguments, "--json", program=AISP)
                self.assert_code(finished, 0)
                self.assertEqual(mistakes(json.loads(finished.out), "explain"), [])

    def test_a_chapter_and_words_with_blanks(self):
        chapter = self.call("explain", "ch03", program=AISP)
        self.assert_code(chapter, 0)
        self.assertGreater(len(re.findall(r"(?m)^pair +ch03:", chapter.out)), 5)
        self.assertNotIn("ch01:", chapter.out)
        name = next(word["name"] for word in self.words() if "_" in word["name"])
        for written in (name.replace("_", " "), name.replace("_", "-"), name.upper()):
            self.assertIn(name, self.call("explain", written).out)

    def test_checks_metrics_and_findings_are_the_rows_of_the_manual(self):
        words = self.words()
        for kind, least in (("check", 35), ("metric", 7), ("finding", 9)):
            found = {word["name"]: word["text"] for word in words if word["kind"] == kind}
            self.assertGreaterEqual(len(found), least)
            for name, text in found.items():
                self.assertRegex(METHOD, rf"(?m)^\| `?{name}`? \| {re.escape(text.split(' (exit status')[0])} \|")

    def test_statuses_and_verdicts_are_those_of_results(self):
        schema = (SOURCE / "docs/schema/result.schema.json").read_text()
        for kind in ("status", "verdict", "bound"):
            for word in (word["name"] for word in self.words() if word["kind"] == kind):
                self.assertIn(f'"{word}"', schema)

    def test_a_word_with_two_meanings_gets_both(self):
        finished = self.call("explain", "memory")
        self.assert_code(finished, 0)
        self.assertRegex(finished.out, r"(?m)^memory +check ")
        self.assertRegex(finished.out, r"(?m)^memory +bound ")

    def test_a_pair(self):
        for name in ("good", "ch90:good"):
            finished = self.call("explain", name)
            self.assert_code(finished, 0)
            for pattern in (r"pair +ch90:good", r"teaches +doubling once", r"baseline +slow", r"optimized +doubled \(the lesson\)", r"library +library",
                            r"bound +host: ", r"expected +nothing recorded"):
                self.assertRegex(finished.out, rf"(?m)^{pattern}")
        self.assert_code(self.run_pairs("ch90:good", flags=("--update-expectations",)), 0)
        self.assertRegex(self.call("explain", "good").out, r"(?m)^expected +doubled on host: [\d.]+x, (further runs from [\d.]+ to [\d.]+|too few .*), recorded")
        pair = json.loads(self.call("explain", "good", "--json").out)[0]
        self.assertEqual({entry["variant"] for entry in pair["expectations"]}, {"doubled", "added", "library"})
        self.assertFalse(pair["expectations"][0]["stale"])

    def test_a_pair_of_the_gpu_says_which_architectures_have_code(self):
        built = re.search(r"(?m)^architectures (\S+)$", self.call("--version", program=AISP).out)[1]

        def told(name, program):
            pair = json.loads(self.call("explain", name, "--json", program=program).out)[0]
            lines = re.findall(r"(?m)^code +(.*)", self.call("explain", name, program=program).out)
            return pair["architectures"], pair["has_code"], lines

        has = f"this executable has it for {built}"
        self.assertEqual(told("ch95:gpu_only", FIXTURES), (built, True, [has]))
        self.assertEqual(told("ch95:absent_architecture", FIXTURES),
                         (built, False, [f"{has}, none of which the pair can run on; cmake --preset all-architectures builds more"]))
        self.assertEqual(told("ch90:good", FIXTURES), ("", True, []))
        self.assertEqual(self.call("explain", "ch95:absent_architecture").out.count("this executable has no code for it"), 2)
        self.assertNotIn("no code", self.call("explain", "ch95:gpu_only").out)

    def test_metrics_of_recorded_runs(self):
        self.assertNotRegex(self.call("explain", "judged_metric").out, r"(?m)^metric ")
        self.assert_code(self.run_pairs("ch90:judged_metric", flags=("--update-expectations",)), 0)
        answer = json.loads(self.call("explain", "judged_metric", "--json").out)
        self.assertEqual(mistakes(answer, "explain"), [])
        slow, doubled = answer[0]["metrics"]
        self.assertEqual((slow["variant"], doubled["variant"], slow["metric"], slow["unit"], slow["better"], slow["hardware"]),
                         ("slow", "doubled", "bytes_moved", "B", "lower", "host"))
        self.assertEqual(slow["value"], 2 * doubled["value"])
        self.assertRegex(self.call("explain", "judged_metric").out,
                         rf"(?m)^metric +bytes_moved on host: slow {slow['value']:.0f}, doubled {doubled['value']:.0f} B \(lower is better\)$")

    def test_an_unknown_word_gets_the_nearest(self):
        for word, near in (("red_zone", "red_zones"), ("regresed", "regressed"), ("ch90:god", "ch90:good")):
            finished = self.call("explain", word)
            self.assert_code(finished, 2)
            self.assert_one_error_line(finished, word, near)


if __name__ == "__main__":
    unittest.main()
