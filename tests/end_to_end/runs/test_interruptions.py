# SPDX-License-Identifier: Apache-2.0
"""Runs that are cut short, and how they are continued."""
import json
import os
import pathlib
import resource
import signal
import subprocess
import time
import unittest

from harness import QUICK, EndToEnd, everything_said, results_log


class Interruptions(EndToEnd):
    def wait_for(self, condition, seconds=30):
        deadline = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), deadline, "waited in vain")
            time.sleep(0.05)

    def results(self, run_id):
        return results_log(self.artifacts / run_id)

    def start_and_signal(self, number, run_id="cut"):
        process = self.start("run", "-t", "ch90:good", "-t", "ch91:hang_in_verify", "-t", "ch94:wrong_result", *QUICK, "--run-id", run_id,
                             start_new_session=True)
        self.wait_for(lambda: len(self.results(run_id)) == 1)
        time.sleep(0.3)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        return process.returncode, out, err

    def test_interrupt_writes_what_there_is(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number):
                run_id = f"cut{int(number)}"
                code, out, err = self.start_and_signal(number, run_id)
                self.assertEqual(code, 130, err)
                self.assertIn(f"--resume artifacts/{run_id}", err)
                suite = json.loads((self.artifacts / run_id / "benchmark_test_results.json").read_text())
                self.assertTrue(suite["interrupted"])
                by_target = {pair["target"]: pair for pair in suite["pairs"]}
                self.assertEqual(by_target["ch90:good"]["status"], "passed")
                self.assertFalse(by_target["ch91:hang_in_verify"]["complete"])
                self.assertIn("interrupted", everything_said(by_target["ch91:hang_in_verify"]))
                self.assertIn("not started", everything_said(by_target["ch94:wrong_result"]))
                self.assertTrue((self.artifacts / run_id / "benchmark_test_results.md").exists())

    def test_resume_runs_what_is_missing_with_the_same_settings(self):
        self.start_and_signal(signal.SIGINT)
        began = time.monotonic()
        finished = self.call("run", "--resume", "cut", "--timeout-multiplier", "0.01")
        self.assertLess(time.monotonic() - began, 60)
        self.assert_code(finished, 1)
        targets = [pair["target"] for pair in self.results("cut") if pair["complete"]]
        self.assertEqual(targets.count("ch90:good"), 1, "what had passed must not run again")
        self.assertEqual(targets.count("ch94:wrong_result"), 1)
        suite = json.loads((self.artifacts / "cut" / "benchmark_test_results.json").read_text())
        status = {pair["target"]: pair["status"] for pair in suite["pairs"]}
        self.assertEqual(status, {"ch90:good": "passed", "ch91:hang_in_verify": "timeout", "ch94:wrong_result": "failed"})
        effective = json.loads((self.artifacts / "cut" / "effective_configuration.json").read_text())
        self.assertEqual(effective["iterations"]["value"], 5)

    def test_resume_survives_a_line_cut_short(self):
        self.run_pairs("ch90:good", "ch90:equal", flags=("--run-id", "torn"))
        file = self.artifacts / "torn" / "results.jsonl"
        lines = file.read_text().splitlines(keepends=True)
        file.write_text(lines[0] + lines[1] + lines[2][: len(lines[2]) // 2])
        finished = self.call("run", "--resume", "torn")
        self.assert_code(finished, 0)
        self.assertIn("warning", finished.err)
        suite = json.loads((self.artifacts / "torn" / "benchmark_test_results.json").read_text())
        self.assertEqual([pair["status"] for pair in suite["pairs"]], ["passed", "passed"])

    def test_resume_of_a_finished_run_measures_nothing(self):
        self.run_pairs("ch90:good", flags=("--run-id", "done"))
        before = (self.artifacts / "done" / "results.jsonl").read_text()
        self.assert_code(self.call("run", "--resume", "latest"), 0)
        self.assertEqual((self.artifacts / "done" / "results.jsonl").read_text(), before)

    def test_resume_with_other_settings_measures_again_what_they_change(self):
        self.run_pairs("ch90:good", "ch90:equal", flags=("--run-id", "mixed", "--seed", "42"))
        finished = self.call("run", "--resume", "mixed", "--scale", "0.5")
        self.assert_code(finished, 0)
        self.assertRegex(finished.err, r"measured again, because done with other settings: ch90:\w+ \(scale 1\), ch90:\w+ \(scale 1\)")
        finished = self.call("run", "--resume", "mixed")
        self.assertIn("2 of 2 pairs were done already", finished.err, "the run has gone on at scale 0.5")
        suite = json.loads((self.artifacts / "mixed" / "benchmark_test_results.json").read_text())
        self.assertEqual([pair["scale"] for pair in suite["pairs"]], [0.5, 0.5], "one run, one scale")
        finished = self.call("run", "--resume", "mixed", "--seed", "7", "--energy", "--iterations", "6")
        self.assertRegex(finished.err, r"ch90:good \(seed \d+\)")
        before = (self.artifacts / "mixed" / "results.jsonl").read_text()
        self.assert_code(self.call("run", "--resume", "mixed", "--iterations", "7"), 0)
        self.assertEqual((self.artifacts / "mixed" / "results.jsonl").read_text(), before, "how often is no other measurement")

    def test_same_run_id_twice_is_refused(self):
        self.run_pairs("ch90:good", flags=("--run-id", "once"))
        finished = self.run_pairs("ch90:good", flags=("--run-id", "once"))
        self.assert_code(finished, 2)
        self.assert_one_error_line(finished, "--resume artifacts/once")

    def test_suite_timeout(self):
        finished = self.run_pairs("ch91:hang_in_verify", "ch94:wrong_result", flags=("--suite-timeout", "2s"))
        self.assert_code(finished, 1)
        suite = json.loads((finished.folder / "benchmark_test_results.json").read_text())
        by_target = {pair["target"]: pair for pair in suite["pairs"]}
        late = by_target["ch91:hang_in_verify"]
        self.assertEqual(late["timeout_stage"], "suite")
        self.assertEqual(late["timeout_limit_seconds"], 2, "the suite's limit, not the stage's")
        self.assertGreaterEqual(late["timeout_duration_seconds"], 2)
        self.assertIn("time of 2 s was up", late["reason"])
        self.assertIn("time was up", everything_said(by_target["ch94:wrong_result"]))

    def test_in_process_ends_at_once(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number):
                run_id = f"inside{int(number)}"
                process = self.start("run", "-t", "ch90:good,ch91:hang_in_verify", *QUICK, "--in-process", "--run-id", run_id)
                self.addCleanup(process.kill)
                self.wait_for(lambda: len(self.results(run_id)) == 1)
                time.sleep(0.5)
                process.send_signal(number)
                _, err = process.communicate(timeout=10)
                self.assertEqual(process.returncode, 130, err)
                self.assertIn(f"aisp: interrupted in ch91:hang_in_verify; continue with --resume artifacts/{run_id}\n", err)

    def test_an_interrupt_after_the_last_pair_interrupted_nothing(self):
        for run_id in ("late1", "late2", "late3"):
            process = self.start("run", "-t", "ch90:good", *QUICK, "--run-id", run_id)
            while not self.results(run_id):
                time.sleep(0.001)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
            self.assertEqual(process.returncode, 0, out + err)
            self.assertNotIn("interrupted", out + err)

    def test_killed_child_is_one_crash(self):
        process = self.start("run", "-t", "ch91:hang_in_verify", "-t", "ch90:good", *QUICK, "--run-id", "shot")

        def child():
            listing = subprocess.run(["pgrep", "-P", str(process.pid), "-f", "__child"], capture_output=True, text=True).stdout.split()
            return [int(pid) for pid in listing]

        self.wait_for(lambda: [pair["target"] for pair in self.results("shot")] == ["ch90:good"] and child())
        os.kill(child()[0], signal.SIGKILL)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1)
        pair = next(pair for pair in self.results("shot") if pair["target"] == "ch91:hang_in_verify")
        self.assertEqual(pair["status"], "crashed")

    def test_child_dies_with_a_killed_parent(self):
        process = self.start("run", "-t", "ch91:hang_in_verify", *QUICK)

        def child():
            return subprocess.run(["pgrep", "-P", str(process.pid), "-f", "__child"], capture_output=True, text=True).stdout.split()

        self.wait_for(child)
        pid = child()[0]
        process.kill()
        process.communicate(timeout=30)

        def gone():
            try:
                return ") Z " in pathlib.Path(f"/proc/{pid}/stat").read_text()
            except OSError:
                return True

        self.wait_for(gone, 10)


class Disk(EndToEnd):
    def test_folder_that_cannot_be_made(self):
        (self.work / "file").write_text("")
        finished = self.run_pairs("ch90:good", flags=("--artifacts-dir", "file/below"))
        self.assert_code(finished, 4)
        self.assert_one_error_line(finished, "file", "--artifacts-dir")

    def test_place_where_not_even_root_may_write(self):
        finished = self.run_pairs("ch90:good", flags=("--artifacts-dir", "/proc/artifacts"))
        self.assert_code(finished, 4)
        self.assert_one_error_line(finished, "/proc/artifacts", "--artifacts-dir")

    @unittest.skipIf(os.geteuid() == 0, "root may write everywhere")
    def test_read_only_folder(self):
        (self.work / "locked").mkdir(mode=0o555)
        finished = self.run_pairs("ch90:good", flags=("--artifacts-dir", "locked/artifacts"))
        self.assert_code(finished, 4)
        self.assert_one_error_line(finished, "locked", "--artifacts-dir")

    def test_full_disk_keeps_what_was_measured(self):
        # A limit on file sizes fails like a full disk: small files fit, the growing results.jsonl meets it.
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))

        finished = self.run_pairs("ch90", flags=("--iterations", "100", "--fixed-iterations", "--run-id", "full"), preexec_fn=limit)
        self.assert_code(finished, 1)
        self.assert_one_error_line(finished, "full", "ulimit -f", "--resume artifacts/full")
        kept = results_log(self.artifacts / "full")
        self.assertTrue(kept, "what fitted must be there, in whole lines")
        self.assertLess(sum(pair["status"] == "passed" for pair in kept), 6)


if __name__ == "__main__":
    unittest.main()
