# SPDX-License-Identifier: Apache-2.0
"""The summary of a run: terminal, Markdown, JSON, CSV and HTML say the same of it."""
import csv
import html
import json
import re
import signal
import time
import unittest

from harness import QUICK, EndToEnd, results_log

# As the terminal and Markdown write them.
WORDS = {"passed": "passed", "failed": "failed", "timed_out": "timed out", "crashed": "crashed", "skipped": "skipped",
         "interrupted": "interrupted", "not_started": "not started"}


class Summary(EndToEnd):
    def summary_of(self, folder):
        return json.loads((folder / "benchmark_test_results.json").read_text())["summary"]

    def markdown_of(self, folder):
        text = (folder / "benchmark_test_results.md").read_text()
        return text, dict(re.findall(r"(?m)^\| ([^|]+?) \| ([^|]+?) \|$", text))

    def page_of(self, folder):
        self.assert_code(self.call("report", str(folder), "--html"), 0)
        return html.unescape((folder / "report.html").read_text()).replace("\u00a0", " ")

    def assert_same(self, folder, terminal):
        """Holds all reports of a run against the summary in its JSON; returns that."""
        summary, (markdown, figures) = self.summary_of(folder), self.markdown_of(folder)
        outcomes = summary["outcomes"]
        self.assertEqual(outcomes["selected"], sum(outcomes[name] for name in WORDS))
        line = re.search(r"(?m)^(\d+) pairs in (.*?): (.*)$", terminal)
        self.assertEqual(int(line[1]), outcomes["selected"])
        self.assertEqual(line[3], ", ".join(f"{outcomes[name]} {word}" for name, word in WORDS.items()
                                            if outcomes[name] or name == "passed"))
        self.assertEqual(figures["pairs selected"], str(outcomes["selected"]))
        for name, word in WORDS.items():
            self.assertEqual(figures[word], str(outcomes[name]), word)
        self.assertEqual(figures["time"], line[2])
        tested = sum(any(chapter["outcomes"][name] for name in ("passed", "failed", "timed_out", "crashed"))
                     for chapter in summary["chapters"])
        self.assertEqual(figures["chapters tested"], f"{tested} of {len(summary['chapters'])}")
        mean = re.search(r"geometric mean ([\d.]+)x, best ([\d.]+)x", terminal)
        self.assertAlmostEqual(float(mean[1]), summary["speedups"]["geometric_mean"], delta=0.006 * float(mean[1]))
        self.assertEqual(figures["geometric mean of the lessons' speedups"], f"{mean[1]}x")
        page = self.page_of(folder)
        self.assertTrue(f"{mean[1]}x" in page, mean[1])
        self.assertTrue(f"took {line[2]}; " in page, line[2])
        for text in (terminal, markdown, page):
            self.assertFalse("arithmetic mean" in text)
        return summary

    def test_of_a_run_that_came_to_its_end(self):
        finished = self.run_pairs("ch90:good", "ch90:equal", "ch94:wrong_result", "ch95:absent_architecture")
        summary = self.assert_same(finished.folder, finished.out)
        self.assertEqual([summary["outcomes"][name] for name in ("passed", "failed", "skipped", "not_started")], [2, 1, 1, 0])
        for text in (finished.out, self.markdown_of(finished.folder)[0], self.page_of(finished.folder)):
            self.assertFalse("ended early" in text)
        rows = list(csv.DictReader((finished.folder / "results.csv").read_text().splitlines()))
        for row in rows:
            self.assertEqual(row["run_id"], finished.folder.name)
            self.assertRegex(row["started_utc"], r"^\d{4}-\d\d-\d\dT")

    def test_of_a_run_that_was_interrupted_and_continued(self):
        process = self.start("run", "-t", "ch90:good,ch90:equal,ch91:hang_in_verify,ch94:wrong_result", *QUICK, "--run-id", "cut")
        deadline = time.monotonic() + 60
        while len(results_log(self.artifacts / "cut")) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        terminal, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, err)
        folder = self.artifacts / "cut"
        first = self.assert_same(folder, terminal)
        self.assertEqual((first["outcomes"]["interrupted"], first["outcomes"]["not_started"]), (1, 1))
        sentence = ("The run ended early: of 4 selected pairs 1 was interrupted and 1 was not started; aisp run --resume cut continues "
                    "it")
        markdown, page = self.markdown_of(folder)[0], self.page_of(folder)
        self.assertLess(terminal.index(sentence), terminal.index("4 pairs in "), "before the figures")
        self.assertLess(markdown.index(sentence), markdown.index("| figure |"))
        self.assertTrue(sentence in page or "Selected but without a result: ch94:wrong_result" in page)

        time.sleep(2)  # the time between two parts is none of the run's
        continued = self.call("run", "--resume", "cut", "--timeout-multiplier", "0.01")
        self.assert_code(continued, 1)
        second = self.assert_same(folder, continued.out)
        self.assertEqual((second["outcomes"]["interrupted"], second["outcomes"]["not_started"]), (0, 0))
        pairs = {pair["target"]: pair for pair in results_log(folder)}
        self.assertEqual(second["wall_s"], max(pair["ended_after_s"] for pair in pairs.values()))
        self.assertGreater(second["wall_s"], first["wall_s"], "the time of both parts")
        self.assertGreaterEqual(second["wall_s"], sum(pair["wall_s"] for pair in pairs.values()))


if __name__ == "__main__":
    unittest.main()
