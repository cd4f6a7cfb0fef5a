# SPDX-License-Identifier: Apache-2.0
"""Pairs of several processes: what goes wrong in one of them costs that pair only, and is reported for what it was."""
import pathlib
import time

from harness import EndToEnd, everything_said, problems, variant


class Ranks(EndToEnd):
    def metric(self, pair, name, metric):
        return next(each for each in variant(pair, name)["metrics"] if each["name"] == metric)

    def bad(self, target, status, *words, longest_s=60, flags=()):
        """Runs `target` between two good pairs: they must pass, and the bad one must say `words` and leave no process."""
        began = time.monotonic()
        finished = self.run_pairs("ch90:equal", target, "ch94:two_ranks", flags=flags)
        self.assertLess(time.monotonic() - began, longest_s)
        self.assert_code(finished, 0 if status == "skipped" else 1)
        for good in ("ch90:equal", "ch94:two_ranks"):
            self.assertEqual(finished.pair(good)["status"], "passed", everything_said(finished.pair(good)))
        pair = finished.pair(target)
        self.assertEqual(pair["status"], status, everything_said(pair))
        for word in words:
            self.assertIn(word, pair["reason"] + " | " + problems(pair))
        self.assertFalse(pair.get("best"))
        self.assertEqual(self.processes_here(), [], "processes are left behind")
        return pair

    def processes_here(self):
        """Processes in the test's own folder, in which aisp and all that it starts run."""
        found = []
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if (process / "cwd").resolve() == self.work.resolve():
                    found.append((process / "cmdline").read_text())
            except OSError:
                pass  # it has ended, or is another user's
        return found


class GoodRanks(Ranks):
    def test_two(self):
        finished = self.run_pairs("ch94:two_ranks")
        self.assert_code(finished, 0)
        pair = finished.pair("ch94:two_ranks")
        self.assertEqual(pair["sizes"], {"ranks": 2})
        self.assertGreater(pair["inputs_checked"], 0)
        for name in ("eight_times", "once"):
            times = variant(pair, name)["timing"]["raw_times_ms"]
            of_ranks = [self.metric(pair, name, f"rank_{rank}_time")["raw"] for rank in (0, 1)]
            self.assertEqual(times, [max(each) for each in zip(*of_ranks)], "a sample's time is the slowest rank's")
            skew_us = self.metric(pair, name, "rank_skew")["raw"]
            for both, skew in zip(zip(*of_ranks), skew_us):
                self.assertAlmostEqual((max(both) - min(both)) * 1e3, skew, places=6)
        self.assertTrue((finished.folder / (pair["log"] + ".rank_1")).exists())

    def test_eight(self):
        finished = self.run_pairs("ch94:eight_ranks", timeout=240)
        self.assert_code(finished, 0)
        self.assertEqual(finished.pair("ch94:eight_ranks")["sizes"], {"ranks": 8})

    def test_verify(self):
        finished = self.call("verify", "--targets", "ch94:two_ranks")
        self.assert_code(finished, 0)

    def test_a_slow_rank_decides_the_time(self):
        pair = self.run_pairs("ch94:rank_slow").pair("ch94:rank_slow")
        self.assertEqual(pair["status"], "passed", everything_said(pair))
        self.assertGreater(min(variant(pair, "once")["timing"]["raw_times_ms"]), 3)

    def test_a_late_rank_is_waited_for(self):
        pair = self.run_pairs("ch94:rank_late").pair("ch94:rank_late")
        self.assertEqual(pair["status"], "passed", everything_said(pair))

    def test_resume_knows_the_pair_again(self):
        finished = self.run_pairs("ch94:two_ranks", flags=("--run-id", "again"))
        self.assert_code(finished, 0)
        again = self.call("run", "--resume", "again")
        self.assert_code(again, 0)
        self.assertEqual(len(finished.lines()), 1, "nothing was measured again")

    def test_not_in_process(self):
        finished = self.run_pairs("ch94:two_ranks", "ch90:equal", flags=("--in-process",))
        pair = finished.pair("ch94:two_ranks")
        self.assertEqual(pair["status"], "skipped")
        self.assertIn("--in-process", pair["reason"])


class RankGoesWrong(Ranks):
    limits = ("--timeout-multiplier", "0.1")

    def test_killed(self):
        self.bad("ch94:rank_killed", "crashed", "rank 1: ", "killed from outside in verify")

    def test_crashed(self):
        self.bad("ch94:rank_crashed", "crashed", "rank 1: ", "SIGABRT")

    def test_stopped(self):
        pair = self.bad("ch94:rank_stopped", "timeout", "rank 1: ", "stopped by a signal", flags=self.limits)
        self.assertEqual(pair["timeout_stage"], "verify")

    def test_hung(self):
        self.bad("ch94:rank_hung", "timeout", "rank", "1", "verify took longer than its limit", flags=self.limits)

    def test_hung_before_the_others_met_it(self):
        self.bad("ch94:rank_missing", "timeout", "rank 1: setup took longer than its limit", flags=self.limits)

    def test_thrown(self):
        self.bad("ch94:rank_thrown", "failed", "rank 1", "the link is down")

    def test_lying(self):
        pair = self.bad("ch94:rank_lying", "failed", "rank 1: ")
        self.assertTrue(all("rank 1" in each["message"] for each in pair["errors"]), problems(pair))

    def test_lying_when_timed(self):
        # The time for more samples than a busy machine has ever left out, so that the first wrong execution is a timed one.
        enough = ("--iterations", "60", "--budget", "10s")
        self.bad("ch94:rank_lying_when_timed", "failed", "rank 1: ", "timed samples were wrong", flags=enough)

    def test_unsupported(self):
        self.bad("ch94:rank_unsupported", "skipped", "rank 1", "this rank lacks a fast link")

    def test_apart(self):
        self.bad("ch94:ranks_apart", "failed", "the ranks went apart", "exchange()")
