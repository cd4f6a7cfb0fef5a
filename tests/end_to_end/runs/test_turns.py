# SPDX-License-Identifier: Apache-2.0
"""Pairs that run at the same time and take turns: nothing works while one of them is measured."""
import json
import signal
import time
import unittest

from harness import QUICK, EndToEnd, everything_said, results_log

GOOD = ("ch90:good", "ch90:equal", "ch90:slower", "ch90:equal_chains", "ch90:unordered_output", "ch90:edged")
SLACK_S = 0.15  # between the child's end and its line in the log, from which its beginning is derived
ATTEMPTS = 3  # a busy machine may write that line later, but a pair that does not wait for its turn works too early every time


def spans(pair):
    """(begin, end) of what must be quiet, and of what comes after it, on the run's clock."""
    stages = pair["watchdog"]
    began = pair["ended_after_s"] - stages["teardown"]["started_s"] - stages["teardown"]["elapsed_s"]
    first, last = stages["setup"], stages["audit"]
    again = stages["reverify"]
    quiet = (began + first["started_s"], began + last["started_s"] + last["elapsed_s"])
    return quiet, (began + again["started_s"], began + again["started_s"] + again["elapsed_s"])


def overlap_s(a, b):
    return min(a[1], b[1]) - max(a[0], b[0])


class Turns(EndToEnd):
    def run_together(self, *targets, flags=()):
        return self.run_pairs(*targets, flags=("--jobs", "3", *flags))

    def test_nothing_works_while_a_pair_is_measured(self):
        for _ in range(ATTEMPTS):
            finished = self.run_together(*GOOD)
            self.assert_code(finished, 0)
            pairs = finished.lines()
            self.assertEqual(len(pairs), len(GOOD))
            disturbed = [f"{other['target']} worked while {pair['target']} was measured" for pair in pairs for other in pairs if other is not pair
                         if any(overlap_s(spans(pair)[0], span) > SLACK_S for span in spans(other))]
            if not disturbed:
                break
        self.assertEqual(disturbed, [])
        waits = [spans(pair)[1][0] - spans(pair)[0][1] for pair in pairs]
        self.assertGreater(max(waits), 0.1, "a pair that has been measured lets others be measured before it goes on")

    def test_profiles_are_measured_too(self):
        for _ in range(ATTEMPTS):
            finished = self.run_together(*GOOD[:2], flags=("--cold-start",))
            self.assert_code(finished, 0)
            first, second = finished.lines()
            both_s = overlap_s((spans(first)[0][0], spans(first)[1][1]), (spans(second)[0][0], spans(second)[1][1]))
            if both_s < SLACK_S:
                break
        self.assertLess(both_s, SLACK_S)

    def test_what_dies_or_hangs_while_it_is_measured_gives_its_turn_back(self):
        began = time.monotonic()
        finished = self.run_together("ch92:killed", "ch91:hang_in_warmup", "ch91:hang_in_measurement", *GOOD[:3],
                                     flags=("--timeout-multiplier", "0.2"))
        self.assert_code(finished, 1)
        status = {pair["target"]: pair["status"] for pair in finished.lines()}
        self.assertEqual([status[target] for target in GOOD[:3]], ["passed"] * 3, status)
        self.assertEqual(status["ch92:killed"], "crashed")
        self.assertEqual(status["ch91:hang_in_warmup"], "timeout")
        self.assertLess(time.monotonic() - began, 60)

    def test_an_interrupt_ends_those_that_wait(self):
        process = self.start("run", "-t", "ch91:hang_in_warmup,ch90:good,ch90:equal", *QUICK, "--jobs", "3", "--run-id", "cut",
                             start_new_session=True)
        self.addCleanup(process.kill)
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 130, err)
        suite = json.loads((self.artifacts / "cut" / "benchmark_test_results.json").read_text())
        self.assertIn("interrupted", " ".join(everything_said(pair) for pair in suite["pairs"]))
        finished = self.call("run", "--resume", "cut", "--timeout-multiplier", "0.1")
        self.assert_code(finished, 1)
        last = {pair["target"]: pair["status"] for pair in results_log(self.artifacts / "cut")}
        self.assertEqual(last, {"ch91:hang_in_warmup": "timeout", "ch90:good": "passed", "ch90:equal": "passed"})

    def test_the_limit_of_a_stage_does_not_count_the_wait(self):
        """The second pair waits for its turn longer than the time between two stages may be."""
        finished = self.run_together("ch91:hang_in_warmup", "ch90:good", flags=("--timeout-multiplier", "0.5"))
        self.assertEqual(finished.pair("ch90:good")["status"], "passed", everything_said(finished.pair("ch90:good")))


if __name__ == "__main__":
    unittest.main()
