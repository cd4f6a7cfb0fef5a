# SPDX-License-Identifier: Apache-2.0
"""Exit statuses and messages for scripts: a run of which nothing ran, or not what --require names; flags whose value may be left
out; a closed pipe."""
import json
import os
import re
import unittest

from harness import QUICK, EndToEnd


class NothingRan(EndToEnd):
    NO_GPU = {"CUDA_VISIBLE_DEVICES": "-1"}

    def test_nothing_ran(self):
        for command, quick in (("run", QUICK), ("verify", ())):
            with self.subTest(command):
                call = lambda *words: self.call(command, *words, *quick, env=self.NO_GPU)  # noqa: E731
                finished = call("-t", "ch95:gpu_only")
                self.assert_code(finished, 5)
                self.assert_one_error_line(finished, "nothing ran: the pair was skipped", "--allow-skipped")
                self.assertIn("0 passed, 1 skipped", finished.out)
                self.assertIn("nothing ran: all 2 pairs were skipped", call("-t", "ch95:gpu_only,ch95:absent_library").err)
                self.assert_code(call("-t", "ch95:gpu_only", "--allow-skipped"), 0)
                self.assert_code(call("-t", "ch95:gpu_only,ch90:good"), 0)
                self.assert_code(call("-t", "ch95:gpu_only,ch94:wrong_result"), 1)

    def test_what_must_have_run(self):
        for command, quick in (("run", QUICK), ("verify", ())):
            call = lambda *words: self.call(command, "-t", "ch90:good,ch95:gpu_only", *words, *quick, env=self.NO_GPU)  # noqa: E731
            for words, told in ((("gpu",), "--require gpu: "), (("h200",), "--require h200: this machine is host"), (("2",), "--require 2: 1 pair ran"),
                                (("1,gpu",), "--require gpu: "), (("1", "--require", "2"), "--require 2: ")):
                with self.subTest(command=command, require=words):
                    finished = call("--require", *words)
                    self.assert_code(finished, 4)
                    self.assertIn(told, finished.err)
            for words in (("host",), ("1",), ("host,1",)):
                with self.subTest(command=command, require=words):
                    self.assert_code(call("--require", *words), 0)
            for wrong in ("0", "GPU", "-1", "a b", "1.5", "9" * 20):
                with self.subTest(command=command, require=wrong):
                    finished = call(f"--require={wrong}")
                    self.assert_code(finished, 2)
                    self.assert_one_error_line(finished, "must be gpu, a key of hardware")

    def test_what_a_machine_must_have(self):
        call = lambda *words: self.call("doctor", *words, env=self.NO_GPU)  # noqa: E731
        for words, told in ((("--require", "gpu"), "--require gpu: "), (("--require", "host,h200"), "--require h200: this machine is host"),
                            (("--topology", "--require", "gpu"), "--require gpu: ")):
            finished = call(*words)
            self.assert_code(finished, 4)
            self.assert_one_error_line(finished, told)
            self.assertTrue(finished.out, "what it found is told all the same")
        finished = call("--require", "2")
        self.assert_code(finished, 2)
        self.assert_one_error_line(finished, "no pair is run here")

    def test_a_refused_requirement_leaves_no_folder(self):
        self.assert_code(self.call("run", "-t", "ch90:good", *QUICK, "--require", "gpu", env=self.NO_GPU), 4)
        self.assertFalse(self.artifacts.exists())

    def test_values_that_may_be_left_out(self):
        self.assert_code(self.run_pairs("ch90:good", flags=("--profile", "--run-id", "looked", "--update-expectations", "--expectations-dir", "e")), 0)
        configuration = json.loads((self.artifacts / "looked/effective_configuration.json").read_text())
        self.assertEqual(configuration["profile"]["value"], "full")
        self.assert_code(self.call("run", "-t", "ch90:good", "--profile=minimal", *QUICK), 0)
        finished = self.call("analyze", "latest", "--expectations-dir", "e", "--output-csv")
        self.assertIn("ch90:good", finished.out)
        self.assertIn("ch90:good", (self.work / "reports/proof_of_benefit.csv").read_text(), finished.err)
        self.call("analyze", "latest", "--expectations-dir", "e", "--output-csv", "named.csv")
        self.assertIn("ch90:good", (self.work / "named.csv").read_text())

    def test_help_names_one_standard_for_each_setting(self):
        for command in ("run", "verify"):
            self.assertNotIn("] [", re.sub(r"\s+", " ", self.call(command, "--help").out).replace("[OPTIONS] [", ""))

    def test_a_reader_that_closes_the_pipe_is_no_error(self):
        for arguments in (("list-targets",), ("list-targets", "--json"), ("--help",), ("explain", "ch90:good")):
            with self.subTest(arguments):
                reader, writer = os.pipe()
                os.close(reader)
                finished = self.call(*arguments, stdout=writer)
                os.close(writer)
                self.assertEqual((finished.code, finished.err), (141, ""))


if __name__ == "__main__":
    unittest.main()
