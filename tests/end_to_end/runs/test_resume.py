# SPDX-License-Identifier: Apache-2.0
"""Results that `run --resume` keeps, measures again and refuses. How runs are cut short is in test_interruptions.py."""
import json
import re
import resource
import signal
import time
import unittest

from harness import QUICK, EndToEnd, results_log


class Resume(EndToEnd):
    def setUp(self):
        super().setUp()
        self.folder = self.artifacts / "run"

    def begin(self, *targets, flags=()):
        return self.run_pairs(*targets, flags=("--run-id", "run", *flags))

    def resume(self, *flags, **keywords):
        return self.call("run", "--resume", "run", *flags, **keywords)

    def targets(self):
        return [pair["target"] for pair in results_log(self.folder)]

    def edit(self, name, change):
        file = self.folder / name
        text = file.read_text()
        changed = change(text)
        self.assertNotEqual(text, changed)
        file.write_text(changed)

    def test_what_did_not_pass_is_measured_again(self):
        self.begin("ch90:good", "ch94:wrong_result")
        finished = self.resume()
        self.assert_code(finished, 1)
        self.assertIn("resumed: 1 of 2 pairs were done already", finished.err)
        self.assertIn("measured again, because they did not pass: ch94:wrong_result (failed)", finished.err)
        self.assertEqual(self.targets(), ["ch90:good", "ch94:wrong_result", "ch94:wrong_result"])

    def test_a_process_that_could_not_be_started_is_tried_again(self):
        def few_descriptors():
            resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))

        finished = self.call("run", "-t", "ch90:good", *QUICK, "--run-id", "run", preexec_fn=few_descriptors)
        self.assert_code(finished, 1)
        first = results_log(self.folder)[0]
        self.assertEqual((first["status"], first["complete"]), ("crashed", False))
        self.assertIn("Too many open files", first["reason"])
        self.assert_code(self.resume(), 0)

    def test_results_of_other_code_are_measured_again(self):
        self.begin("ch90:good", "ch90:equal")
        self.edit("results.jsonl", lambda text: re.sub('"source_digest":"[^"]*"', '"source_digest":"00"', text, count=1))
        finished = self.resume()
        self.assert_code(finished, 0)
        self.assertIn("1 of 2 pairs were done already", finished.err)
        self.assertRegex(finished.err, r"done with other settings: ch90:\w+ \(other code\)\n")
        self.assertEqual(len(self.targets()), 3)

    def test_a_run_of_another_machine_or_program_is_not_continued(self):
        self.begin("ch90:good")
        good = (self.folder / "manifest.json").read_text()
        for field, value in (("cpu", "Another CPU"), ("commit", "deadbeef")):
            with self.subTest(field):
                (self.folder / "manifest.json").write_text(re.sub(f'"{field}": "[^"]*"', f'"{field}": "{value}"', good))
                for flags in ((), ("--dry-run",)):
                    finished = self.resume("-t", "ch90:equal", *flags)
                    self.assert_code(finished, 4)
                    self.assert_one_error_line(finished, "measured elsewhere", value)
                self.assertEqual(self.targets(), ["ch90:good"])
        (self.folder / "manifest.json").write_text(good)
        self.assert_code(self.resume("-t", "ch90:equal", "--dry-run"), 0)
        self.assertEqual(self.targets(), ["ch90:good"])
        self.assert_code(self.resume("-t", "ch90:equal"), 0)

    def test_nobody_guesses_what_was_to_be_measured(self):
        self.begin("ch90:good")
        (self.folder / "effective_configuration.json").unlink()
        for flags in ((), ("--dry-run",), ("--list",)):
            finished = self.resume(*flags)
            self.assert_code(finished, 2)
            self.assert_one_error_line(finished, "effective_configuration.json", "--targets")
        self.assert_code(self.resume("-t", "ch90:good"), 0)
        self.edit("effective_configuration.json", lambda text: text.replace('"schema_version": 1', '"schema_version": 9'))
        finished = self.resume()
        self.assert_code(finished, 2)
        self.assert_one_error_line(finished, "effective_configuration.json", "schema version 9")

    def test_without_a_manifest_results_belong_to_no_machine(self):
        self.begin("ch90:good")
        (self.folder / "manifest.json").unlink()
        finished = self.resume()
        self.assert_code(finished, 2)
        self.assert_one_error_line(finished, "manifest.json")

    def test_targets_are_added_to_those_of_the_run(self):
        self.begin("ch90:good")
        self.assert_code(self.resume("-t", "ch90:equal"), 0)
        suite = json.loads((self.folder / "benchmark_test_results.json").read_text())
        self.assertEqual(sorted(pair["target"] for pair in suite["pairs"]), ["ch90:equal", "ch90:good"])
        self.assertEqual(sorted(json.loads((self.folder / "manifest.json").read_text())["targets"]), ["ch90:equal", "ch90:good"])

    def test_a_header_that_was_cut_short(self):
        self.begin("ch90:good")
        header = (self.folder / "results.jsonl").read_text().splitlines()[0]
        for text in ("", header[:30], header):
            with self.subTest(text):
                (self.folder / "results.jsonl").write_text(text)
                self.assert_code(self.resume(), 0)
                self.assertEqual(self.targets(), ["ch90:good"])
                self.assertIn("1 of 1 pairs were done already", self.resume().err)

    def test_a_log_without_its_header_is_refused(self):
        self.begin("ch90:good", "ch90:equal")
        self.edit("results.jsonl", lambda text: text.split("\n", 1)[1])
        for finished in (self.resume(), self.call("compare", "run")):
            self.assert_code(finished, 2)
            self.assert_one_error_line(finished, "results.jsonl:1", "first line")

    def test_verify_is_run_again_and_never_continued(self):
        process = self.start("verify", "-t", "ch90:good,ch91:hang_in_verify", "--run-id", "run")
        deadline = time.monotonic() + 60
        while not self.targets() and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, err)
        self.assertIn("interrupted; run it again", err)
        self.assertNotIn("--resume", err)
        finished = self.resume()
        self.assert_code(finished, 2)
        self.assert_one_error_line(finished, "artifacts/run", "aisp verify")
        self.assertEqual(self.call("analyze", "--history").code, 2, "nothing was timed")

    def test_what_a_killed_run_left_behind_goes(self):
        process = self.start("run", "-t", "ch91:hang_in_verify", *QUICK, "--run-id", "run")
        deadline = time.monotonic() + 60
        while not list(self.folder.glob(".scratch-*")) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.kill()
        process.communicate(timeout=30)
        scratch = list(self.folder.glob(".scratch-*"))
        self.assertTrue(scratch)
        (self.folder / ".results.csv.part-Ab3dEf").write_text("half")
        self.resume("--timeout-multiplier", "0.01")
        self.assertEqual(sorted(path.name for path in self.folder.glob(".*")), [".lock"])


if __name__ == "__main__":
    unittest.main()
