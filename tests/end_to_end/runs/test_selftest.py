# SPDX-License-Identifier: Apache-2.0
"""aisp selftest: every cheat that can run here is caught, honest pairs pass, and a harness with a hole is told."""
import json
import os
import pty
import signal
import subprocess
import sys
import unittest

from harness import AISP, EndToEnd
from schemas import mistakes

# The address sanitizer keeps books of its own, so these look otherwise under it.
UNLIKE_UNDER_SANITIZER = {"exhaust_memory", "leak_memory", "leak_when_timed", "out_of_bounds", "out_of_bounds_when_timed",
                          "flag_in_red_zone"} if "AISP_SANITIZED" in os.environ else set()


class Selftest(EndToEnd):
    def report(self, *flags, env=None):
        finished = self.call("selftest", "--json", *flags, program=AISP, env=env, timeout=300)
        report = json.loads(finished.out)
        self.assertEqual(mistakes(report, "selftest"), [])
        return finished, report

    def test_no_cheat_on_the_host_slips_through_and_no_honest_pair_is_accused(self):
        finished, report = self.report("--host")
        pairs = {pair["name"]: pair for pair in report["pairs"]}
        self.assertEqual({pair["device"] for pair in pairs.values()}, {"host"})
        for name, pair in pairs.items():
            if name not in UNLIKE_UNDER_SANITIZER:
                with self.subTest(name):
                    self.assertEqual(pair["verdict"], "passed" if pair["honest"] else "caught", pair)
        self.assertGreaterEqual(sum(not pair["honest"] for pair in pairs.values()), 40)
        self.assertGreaterEqual(sum(pair["honest"] for pair in pairs.values()), 12)
        self.assertLess(report["wall_s"], 60)
        if not UNLIKE_UNDER_SANITIZER:
            self.assert_code(finished, 0)
        self.assertEqual(list(self.work.glob("*")), [], "nothing is written")

    def test_a_busy_machine_accuses_nobody_and_excuses_nobody(self):
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3 * os.cpu_count())]
        try:
            _, report = self.report("--host", "honest_ways", "sleeping_baseline")
        finally:
            for process in busy:
                process.kill()
                process.wait()
        self.assertGreaterEqual(len(report["pairs"]), 8)
        for pair in report["pairs"]:
            with self.subTest(pair["name"]):
                self.assertEqual(pair["verdict"], "passed" if pair["honest"] else "caught", pair)

    @unittest.skipIf(UNLIKE_UNDER_SANITIZER, "needs a heap without a sanitizer")
    def test_a_check_that_is_switched_off_is_told(self):
        finished, report = self.report("--host", env={"AISP_MEMORY_CHECKER": "1"})
        self.assert_code(finished, 1)
        self.assertFalse(report["good"])
        slipped = {pair["name"]: pair for pair in report["pairs"] if pair["verdict"] == "slipped"}
        self.assertEqual(set(slipped), {"leak_memory", "leak_when_timed", "out_of_bounds", "out_of_bounds_when_timed"})
        self.assertEqual(slipped["out_of_bounds"]["reason"], "it ended as passed")
        told = self.call("selftest", "--host", program=AISP, env={"AISP_MEMORY_CHECKER": "1"}, timeout=300).out
        self.assertIn("\nSLIPPED THROUGH out_of_bounds: it ended as passed\n  it writes one element behind its output\n"
                      "  must be failed: verify/red_zones\n  was passed\n", told)

    def test_cheats_of_the_gpu_are_skipped_without_one(self):
        hidden = {"CUDA_VISIBLE_DEVICES": "-1"}
        finished = self.call("selftest", "--gpu", program=AISP, env=hidden)
        self.assert_code(finished, 4)
        self.assert_one_error_line(finished, "--gpu", "no usable GPU")

    def test_hidden_from_every_other_command(self):
        listed = {target["name"] for target in json.loads(self.call("list-targets", "--json", program=AISP).out)}
        self.assertFalse({"zeros", "gpu_zeros", "honest"} & listed)
        for arguments in (("run", "-t", "ch94"), ("run", "-t", "ch94:zeros"), ("verify", "-t", "gpu_zeros")):
            self.assert_code(self.call(*arguments, program=AISP), 2)
        self.assert_code(self.call("list-targets", "-t", "gpu_z*", program=AISP), 5)

    def test_interrupted(self):
        # On a terminal a line tells of each pair that is done: after the first the self-test is under way, and far from its end.
        terminal, tool_side = pty.openpty()
        process = self.start("selftest", "--host", "--json", program=AISP, stderr=tool_side)
        os.close(tool_side)
        seen = b""
        while b"[1/" not in seen:
            seen += os.read(terminal, 1024)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
        os.close(terminal)
        self.assertEqual(process.returncode, 130, seen)
        report = json.loads(out)
        self.assertEqual(mistakes(report, "selftest"), [])
        self.assertTrue(report["interrupted"])
        self.assertFalse(report["good"])
        self.assertTrue(report["pairs"])

    def test_table(self):
        finished = self.call("selftest", program=AISP, env={"CUDA_VISIBLE_DEVICES": "-1"}, timeout=300)
        families = [line for line in finished.out.splitlines() if line.startswith("gpu_")]
        self.assertGreaterEqual(len(families), 8)
        for line in families:
            self.assertRegex(line, r" \d+ skipped$")
        self.assertRegex(finished.out, r"\nskipped, no CUDA device.*: \d+ pairs\n")
        if not UNLIKE_UNDER_SANITIZER:
            self.assert_code(finished, 0)
            self.assertRegex(finished.out, r"\nwrong_results +[\d.]+ +Their results are wrong every time they run +\d+ caught\n")
            self.assertRegex(finished.out.splitlines()[-1], r"^(\d+) of \1 cheats caught, (\d+) of \2 honest pairs passed, \d+ skipped")
            self.assertNotIn("SLIPPED", finished.out)


if __name__ == "__main__":
    unittest.main()
