# SPDX-License-Identifier: Apache-2.0
"""--profile on the host: what a host pair says, where it is written, and that none of it is there unasked."""
import unittest

from harness import EndToEnd, variant
from schemas import mistakes


class HostProfile(EndToEnd):
    def test_minimal_says_what_the_kernel_counted(self):
        finished = self.run_pairs("ch90:good", flags=("--profile", "minimal"))
        self.assert_code(finished, 0)
        line, note = finished.out.splitlines()[:2]
        self.assertIn("ch90:good", line)
        self.assertRegex(note, r"^  host pair, no GPU activity: CPU time .* became .*, context switches \d+ became \d+, page faults \d+ became \d+$")
        pair = finished.pair("ch90:good")
        self.assertEqual(mistakes(pair, "result"), [])
        self.assertTrue(pair["watchdog"]["profiling"]["finished"])
        self.assertEqual(pair["watchdog"]["profiling"]["limit_s"], 180)
        for each in pair["variants"]:
            self.assertGreater(each["profile"]["host"]["wall_ms"], 0)
            self.assertEqual(each["profile"]["kernels"], [])
        own = finished.folder / "ch90_good"
        tables = (own / "profiles" / "profile.md").read_text()
        self.assertIn("| doubled |", tables)
        self.assertIn("no GPU activity", tables)
        self.assertIn("no GPU activity", (own / "results" / "benchmark_test_results.md").read_text())

    def test_full_does_no_less(self):
        finished = self.run_pairs("ch90:good", flags=("--profile", "full"))
        self.assert_code(finished, 0)
        self.assertIn("profile", variant(finished.pair("ch90:good"), "doubled"))

    def test_nothing_unasked(self):
        for flags in ((), ("--profile", "none"), ("--no-profile",)):
            with self.subTest(flags):
                finished = self.run_pairs("ch90:good", flags=(*flags, "--run-id", "run" + str(len(flags))))
                self.assert_code(finished, 0)
                self.assertNotIn("GPU activity", finished.out)
                self.assertFalse(list(self.artifacts.rglob("profiles")))

    def test_a_failed_pair_is_not_profiled(self):
        finished = self.run_pairs("ch92:throw_binary", flags=("--profile", "minimal"))
        self.assert_code(finished, 1)
        self.assertNotIn("profiling", finished.pair("ch92:throw_binary")["watchdog"])

    def test_the_limit_follows_the_multiplier(self):
        finished = self.run_pairs("ch90:good", flags=("--profile", "minimal", "--timeout-multiplier", "2"))
        self.assertEqual(finished.pair("ch90:good")["watchdog"]["profiling"]["limit_s"], 360)


if __name__ == "__main__":
    unittest.main()
