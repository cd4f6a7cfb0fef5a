# SPDX-License-Identifier: Apache-2.0
"""Every way in which a pair can go wrong costs that pair only and is reported for what it was."""
import csv
import json
import os
import shutil
import subprocess
import unittest

from harness import EndToEnd, everything_said, problems, variant


class PairGoesWrong(EndToEnd):
    def bad(self, target, status, *words, flags=()):
        """Runs `target` between two good pairs: they must pass, and the bad one must say `words`."""
        finished = self.run_pairs("ch90:equal", target, "ch90:good", flags=flags)
        self.assert_code(finished, 0 if status in ("passed", "skipped") else 1)
        for good in ("ch90:equal", "ch90:good"):
            self.assertEqual(finished.pair(good)["status"], "passed", everything_said(finished.pair(good)))
        pair = finished.pair(target)
        self.assertEqual(pair["status"], status, everything_said(pair))
        for word in words:
            self.assertIn(word.lower(), everything_said(pair).lower())
        self.assertIn(target, finished.out)
        if status not in ("passed", "skipped"):
            self.assertTrue(pair["reason"])
            self.assertFalse(pair.get("best"))
        return pair


class Hangs(PairGoesWrong):
    quick_limits = ("--timeout-multiplier", "0.02")

    def hang(self, name, stage, flags=()):
        pair = self.bad(f"ch91:{name}", "timeout", "--timeout-multiplier", flags=(*self.quick_limits, *flags))
        self.assertEqual(pair["timeout_stage"], stage)
        self.assertGreater(pair["timeout_duration_seconds"], pair["timeout_limit_seconds"])
        record = pair["watchdog"]
        self.assertFalse(record[stage]["finished"])
        return pair

    def test_constructor(self):
        self.hang("hang_in_constructor", "setup")

    def test_prepare(self):
        self.hang("hang_in_prepare", "verify")

    def test_verify(self):
        self.hang("hang_in_verify", "verify")

    def test_signals_are_ignored(self):
        self.hang("hang_ignoring_signals", "verify")

    def test_warmup(self):
        # Time enough for 40 executions on a busy machine.
        self.hang("hang_in_warmup", "warmup", ("--warmup", "200", "--timeout-multiplier", "0.2"))

    def test_measurement_keeps_what_was_verified(self):
        # And for 30 here.
        pair = self.hang("hang_in_measurement", "measurement",
                         ("--warmup", "1", "--iterations", "100", "--budget", "2s", "--timeout-multiplier", "0.2"))
        self.assertIn("killed after", pair["reason"])
        self.assertIn("in 'doubled'", pair["reason"])
        self.assertTrue([variant for variant in pair["variants"] if variant.get("accuracy")])

    def test_teardown(self):
        pair = self.bad("ch91:hang_in_teardown", "timeout", flags=self.quick_limits)
        self.assertEqual(pair["timeout_stage"], "teardown")

    def test_exit_handler_cannot_touch_the_result(self):
        pair = self.bad("ch91:hang_at_exit", "passed")
        self.assertTrue(pair["complete"])
        self.assertLess(pair["wall_s"], 20)


class Deaths(PairGoesWrong):
    def test_segmentation_fault(self):
        pair = self.bad("ch92:segfault", "crashed", "SIGSEGV", "crashed in verify, in 'doubled'")
        self.assertFalse(pair["complete"])
        self.assertEqual(pair["errors"][0]["variant"], "doubled")
        stack = next(error for error in pair["errors"] if error["check"] == "stack")
        self.assertEqual(stack["variant"], "doubled")
        self.assertRegex(stack["message"], r"^it crashed in\n#0 .*ch92.*Crashes::writing_wildly.* \+ 0x[0-9a-f]+\n#1 ")

    def test_abort(self):
        pair = self.bad("ch92:abort_call", "crashed", "SIGABRT")
        stack = next(error for error in pair["errors"] if error["check"] == "stack")
        self.assertRegex(stack["message"], r"\n#\d+ .*ch92.* \+ 0x")

    def test_exception_in_a_thread(self):
        self.bad("ch92:throw_in_thread", "crashed", "SIGABRT", "lost in a thread")

    def test_exception_while_set_up(self):
        self.bad("ch92:throw_in_constructor", "failed", "no such table")

    def test_exception_while_measured(self):
        self.bad("ch92:throw_in_run", "failed", "the gears are jammed")

    def test_bytes_that_are_no_text(self):
        for name, status in (("throw_binary", "failed"), ("binary_last_words", "crashed")):
            with self.subTest(name):
                finished = self.run_pairs(f"ch92:{name}", flags=("--json", "-", "--run-id", name))
                self.assert_code(finished, 1)
                self.assertNotIn("internal", finished.err)
                pair = json.loads(finished.out)["pairs"][0]
                self.assertEqual(pair["status"], status)
                self.assertIn("alas \ufffd\ufffd", everything_said(pair))

    def test_exception_in_a_first_run_names_the_variant(self):
        pair = self.bad("ch92:throw_in_run", "failed", "the gears are jammed", flags=("--cold-start",))
        self.assertEqual(variant(pair, "doubled")["status"], "failed")
        self.assertEqual([(error["stage"], error["variant"]) for error in pair["errors"]], [("setup", "doubled")])

    def test_exception_of_no_class(self):
        self.bad("ch92:throw_unknown", "failed")

    def test_silent_exit(self):
        self.bad("ch92:exit_silently", "crashed", "exit status 3")

    def test_exit_with_status_zero_is_no_pass(self):
        self.bad("ch92:exit_well", "crashed", "exit status 0")

    def test_killed_from_outside(self):
        self.bad("ch92:killed", "crashed", "killed from outside", "MiB")

    def test_samples_survive_a_death(self):
        finished = self.run_pairs("ch92:killed_while_measuring", flags=("--iterations", "100000", "--budget", "60s"))
        self.assert_code(finished, 1)
        pair = finished.pair("ch92:killed_while_measuring")
        self.assertEqual(pair["status"], "crashed", everything_said(pair))
        self.assertFalse(pair["complete"])
        self.assertTrue(variant(pair, "doubled")["timing"]["raw_times_ms"])

    @unittest.skipIf("AISP_SANITIZED" in os.environ, "the address sanitizer cannot live with RLIMIT_AS")
    def test_memory_runs_out(self):
        pair = self.bad("ch92:exhaust_memory", "failed", "memory")
        self.assertIn("doubled", [problem["variant"] for problem in pair["errors"]])

    def test_stack_overflow(self):
        pair = self.bad("ch92:stack_overflow", "crashed", "SIGSEGV")
        self.assertIn("stack", [error["check"] for error in pair["errors"]])


class Nuisances(PairGoesWrong):
    def test_megabytes_of_output_are_cut(self):
        pair = self.bad("ch93:print_megabytes", "passed", "output was too long")
        log = self.log(pair)
        self.assertLess(log.stat().st_size, 17 << 20)
        text = log.read_text()
        self.assertIn("first words", text[:4096])
        self.assertIn("last words", text[-65536:])
        self.assertIn("bytes dropped here", text)

    def log(self, pair):
        folder = next(path for path in self.artifacts.iterdir() if path.is_dir())
        return folder / pair["log"]

    def test_children_left_behind_are_killed(self):
        def survivors():
            listing = subprocess.run(["pgrep", "-f", "__child"], capture_output=True, text=True).stdout.split()
            marks = []
            for pid in listing:
                try:
                    with open(f"/proc/{pid}/environ", "rb") as environ:
                        if str(self.work).encode() in environ.read():
                            marks.append(pid)
                except OSError:
                    pass
            return marks

        self.bad("ch93:fork_children", "passed", "3 processes")
        self.assertEqual(survivors(), [])

    def test_garbage_on_the_pipe(self):
        self.bad("ch93:garbage_on_pipe", "passed", "unreadable line", "not json")

    def test_closed_pipe(self):
        self.bad("ch93:close_pipe", "crashed", "closed its result pipe")

    @unittest.skipIf("AISP_SANITIZED" in os.environ, "the C library knows nothing of the address sanitizer's heap")
    def test_leak_is_reported(self):
        self.bad("ch93:leak_memory", "failed", "memory")


class Lies(PairGoesWrong):
    def lie(self, name, *words):
        pair = self.bad(f"ch94:{name}", "failed", *words)
        self.assertFalse([variant for variant in pair["variants"] if variant["name"] == "doubled" and variant.get("speedup")],
                         "a pair that failed verification has no speedup")
        return pair

    def test_wrong_result(self):
        pair = self.lie("wrong_result")
        self.assertEqual(variant(pair, "doubled")["status"], "failed")
        self.assertEqual(variant(pair, "slow")["status"], "passed")

    def test_unwritten_elements(self):
        pair = self.lie("unwritten_elements", "written")
        self.assertNotIn("accuracy", variant(pair, "doubled"), "nothing was compared")

    def test_zeros(self):
        pair = self.lie("zeros")
        self.assertEqual(variant(pair, "doubled")["accuracy"]["relative_l2"], 1, "a failure says how wrong it is")

    def test_not_a_number(self):
        self.lie("nan_output", "nan")

    def test_modified_inputs(self):
        self.lie("modified_inputs", "input")

    def test_stale_output(self):
        self.lie("stale_output")

    def test_skipped_work(self):
        self.lie("skipped_work", "first run")

    def test_input_independent_output(self):
        self.lie("input_independent", "input")

    def test_lower_precision(self):
        self.lie("lower_precision")

    def test_work_done_in_prepare(self):
        self.lie("work_in_prepare")

    def test_work_done_in_reset(self):
        self.lie("work_in_reset")

    def test_wrong_baseline(self):
        pair = self.lie("wrong_baseline")
        self.assertEqual(variant(pair, "slow")["status"], "failed")

    def test_own_validation(self):
        self.lie("failed_validation", "the ledger does not balance")

    def test_non_determinism_is_recorded(self):
        pair = self.bad("ch94:non_deterministic", "passed")
        self.assertFalse(variant(pair, "doubled")["accuracy"]["bitwise_repeatable"])
        self.assertTrue(variant(pair, "slow")["accuracy"]["bitwise_repeatable"])

    def test_non_determinism_fails_where_reproducibility_is_asked_for(self):
        for name in ("non_deterministic", "hidden_non_determinism"):
            with self.subTest(name):
                finished = self.run_pairs(f"ch94:{name}", flags=("--reproducible", "--run-id", name))
                self.assert_code(finished, 1)
                self.assertIn("determin", finished.out + finished.err + (self.artifacts / name / "results.jsonl").read_text())


class Skips(PairGoesWrong):
    def test_unsupported_at_set_up(self):
        pair = self.bad("ch95:unsupported", "skipped", "io_uring is refused by the kernel (EPERM)")
        self.assertEqual(pair["variants"], [], "nothing ran, so no variant passed")

    def test_unsupported_variant_only(self):
        for flags in ((), ("--cold-start",)):
            with self.subTest(flags):
                pair = self.bad("ch95:unsupported_variant", "passed", "the clock is not for sale", flags=("--run-id", f"run{len(flags)}", *flags))
                self.assertEqual(variant(pair, "refused")["status"], "skipped")
                self.assertNotIn("accuracy", variant(pair, "refused"))
                self.assertEqual(variant(pair, "doubled")["status"], "passed")
                cold = [metric for metric in variant(pair, "doubled")["metrics"] if metric["name"] == "cold_start"]
                self.assertEqual(len(cold), len(flags))
                shutil.rmtree(self.artifacts)

    def test_every_pair_is_in_the_table(self):
        finished = self.run_pairs("ch95:unsupported", "ch95:absent_cpus", "ch92:segfault", "ch95:unsupported_variant")
        with open(finished.folder / "results.csv", newline="") as file:
            rows = {(row["target"], row["variant"]): row for row in csv.DictReader(file)}
        for target, status, word in (("ch95:unsupported", "skipped", "io_uring"), ("ch95:absent_cpus", "skipped", "CPU"),
                                     ("ch92:segfault", "crashed", "SIGSEGV")):
            row = rows[target, ""]
            self.assertEqual((row["pair_status"], row["variant_status"], row["role"]), (status, "", ""))
            self.assertIn(word, row["reason"])
        self.assertEqual(rows["ch95:unsupported_variant", "refused"]["relative_l2"], "")
        self.assertEqual(rows["ch95:unsupported_variant", "doubled"]["percent_of_floor"], "")

    def test_cpus(self):
        self.bad("ch95:absent_cpus", "skipped", "CPU")

    def test_memory(self):
        self.bad("ch95:absent_memory", "skipped", "memory")

    def test_library(self):
        pair = self.bad("ch95:absent_library", "skipped", "cuSPARSELt")
        self.assertTrue(problems(pair))

    def test_number_of_gpus(self):
        self.bad("ch95:many_gpus", "skipped")

    def test_no_gpu(self):
        finished = self.run_pairs("ch95:gpu_only", "ch90:good", env={"CUDA_VISIBLE_DEVICES": "-1"})
        self.assert_code(finished, 0)
        self.assertEqual(finished.pair("ch95:gpu_only")["status"], "skipped")
        self.assertIn("no CUDA device", everything_said(finished.pair("ch95:gpu_only")))
        self.assertEqual(finished.pair("ch90:good")["status"], "passed")


if __name__ == "__main__":
    unittest.main()
