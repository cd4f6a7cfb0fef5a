# SPDX-License-Identifier: Apache-2.0
"""Pairs whose rounds are long against their stage's limit lose rounds, not their result."""
import unittest

from harness import EndToEnd, everything_said, results_log, variant

# 0.3 s for warm-up and measurement each, killed 2 s later; a round takes 25 ms.
SHORT = ("--timeout-multiplier", "0.02")
SLOW = "ch88:deliberate"


class SlowPairs(EndToEnd):
    def run_slow(self, *flags):
        self.runs = getattr(self, "runs", 0) + 1
        finished = self.call("run", "-t", SLOW, *SHORT, "--budget", "0.05s", "--run-id", f"run{self.runs}", *flags)
        self.assert_code(finished, 0)
        (pair,) = results_log(self.artifacts / f"run{self.runs}")
        self.assertEqual(pair["status"], "passed", everything_said(pair))
        return pair

    def test_the_measurement_stops_with_the_rounds_that_fit(self):
        for flags in ((), ("--fixed-iterations",), ("--no-alternate",)):
            with self.subTest(flags):
                pair = self.run_slow("--iterations", "200", "--warmup", "1", *flags)
                self.assertEqual(pair["stopped_because"], "stage limit")
                rounds = len(variant(pair, "slow")["timing"]["rounds"])
                self.assertGreaterEqual(rounds, 5)
                self.assertLess(rounds, 20)
                self.assertEqual(len(variant(pair, "quick")["timing"]["rounds"]), rounds)
                self.assertEqual(variant(pair, "quick")["speedup"]["verdict"], "faster")
                self.assertIn(f"{rounds} of 200 rounds: more did not fit into the 0.3 s of the measurement", everything_said(pair))
                self.assertLess(pair["watchdog"]["measurement"]["elapsed_s"], 1)

    def test_so_does_the_warm_up(self):
        pair = self.run_slow("--iterations", "5", "--warmup", "200")
        self.assertNotEqual(pair["stopped_because"], "stage limit")
        self.assertLess(pair["watchdog"]["warmup"]["elapsed_s"], 1)


if __name__ == "__main__":
    unittest.main()
