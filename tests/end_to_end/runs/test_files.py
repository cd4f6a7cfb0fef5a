# SPDX-License-Identifier: Apache-2.0
"""The places of results: files that users name, and the folder of a run when others lay hands on it."""
import json
import os
import resource
import shutil
import threading
import time
import unittest

from harness import FIXTURES, QUICK, EndToEnd, results_log


class NamedFiles(EndToEnd):
    """--json FILE and its like; what they do with pipes, devices and links is in tests/base/output_file_test.cpp."""

    def test_a_pipe_gets_the_text_and_stays_a_pipe(self):
        self.run_pairs("ch90:good", flags=("--run-id", "first", "--update-expectations"))
        pipe = self.work / "pipe"
        os.mkfifo(pipe)
        for command, sign in ((("run", "-t", "ch90:good", *QUICK, "--run-id", "second", "--json", "pipe"), '"pairs"'),
                              (("report", "first", "--html", "pipe"), "<!DOCTYPE html>"),
                              (("analyze", "first", "--junit", "pipe"), "<testsuite"), (("analyze", "first", "--output-csv", "pipe"), "target"),
                              (("analyze", "first", "--google-benchmark", "pipe"), "benchmarks"), (("compare", "first", "--json", "pipe"), "{")):
            with self.subTest(command):
                read = []
                reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
                reader.start()
                self.assert_code(self.call(*command), 0)
                reader.join(10)
                self.assertTrue(read and sign in read[0], read)
                self.assertTrue(pipe.is_fifo())

    def test_a_descriptor_of_the_shell(self):
        read_end, write_end = os.pipe()
        finished = self.run_pairs("ch90:good", flags=("--json", f"/dev/fd/{write_end}"), pass_fds=(write_end,))
        os.close(write_end)
        with os.fdopen(read_end) as reader:
            self.assertEqual(json.load(reader)["pairs"][0]["target"], "ch90:good")
        self.assert_code(finished, 0)

    def test_standard_output_by_its_name_keeps_what_was_printed(self):
        with open(self.work / "out.txt", "w") as out:
            # The file that /dev/stdout leads to; should this ever fail, nothing can have taken its place there.
            finished = self.run_pairs("ch90:good", flags=("--json", "/proc/self/fd/1"), stdout=out)
        self.assert_code(finished, 0)
        text = (self.work / "out.txt").read_text()
        self.assertIn("1 passed", text)
        self.assertIn('"pairs"', text)

    def test_what_cannot_be_written_is_told_before_anything_is_measured(self):
        for file in (".", "/proc/x.json", "aisp.toml/x.json"):
            (self.work / "aisp.toml").write_text("")
            for command in ("run", "verify"):
                with self.subTest(file=file, command=command):
                    finished = self.call(command, "-t", "ch90:good", "--json", file)
                    self.assert_code(finished, 4)
                    self.assert_one_error_line(finished, file.split("/")[0])
                    self.assertNotIn("passed", finished.out)
                    self.assertEqual(list(self.artifacts.iterdir()), [], "nothing was measured, so there is no run")

    def test_the_summary_comes_before_a_file_that_fails(self):
        (self.work / "json").mkdir()
        process = self.start("run", "-t", "ch90:good", *QUICK, "--json", "json/x.json")
        while not any(self.artifacts.glob("*/results.jsonl")):
            time.sleep(0.01)
        shutil.rmtree(self.work / "json")
        (self.work / "json").write_text("")
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 4, err)
        self.assertIn("1 passed", out)
        self.assertIn("Reports: ", out)

    def test_a_run_ends_with_the_command_for_its_report(self):
        finished = self.run_pairs("ch90:good")
        self.assert_code(finished, 0)
        told = finished.out.splitlines()[-1]
        self.assertEqual(told, f"As one page for a browser: {FIXTURES} report artifacts/{finished.folder.name} --html")
        self.assert_code(self.call(*told.split()[7:]), 0)
        self.assertTrue((finished.folder / "report.html").exists())
        for quiet in (["run", "-t", "ch90:good", *QUICK, "--quiet"], ["verify", "-t", "ch90:good"]):
            self.assertNotIn("report", self.call(*quiet).out)

    def test_limit_on_the_size_of_files(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

        self.assert_code(self.run_pairs("ch90:good", flags=("--run-id", "first")), 0)
        finished = self.call("report", "first", "--html", "x.html", preexec_fn=limit)
        self.assert_code(finished, 4)
        self.assert_one_error_line(finished, "x.html", "ulimit -f")


class FolderOfARun(EndToEnd):
    TARGETS = ["ch90:equal", "ch90:good", "ch90:judged_metric", "ch90:slower", "ch90:tokens"]

    def wait_for_results(self, count, run_id="run"):
        deadline = time.monotonic() + 60
        while len(results_log(self.artifacts / run_id)) < count:
            self.assertLess(time.monotonic(), deadline, "waited in vain")
            time.sleep(0.01)

    def start_run(self):
        process = self.start("run", "-t", ",".join(self.TARGETS), *QUICK, "--run-id", "run")
        self.wait_for_results(1)
        return process

    def finish(self, process):
        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 1, err)
        return out, err

    def test_a_folder_that_disappears_is_written_anew(self):
        for number, remove in enumerate((lambda run: shutil.rmtree(run, ignore_errors=True), lambda run: (run / "results.jsonl").unlink(),
                                         lambda run: run.rename(self.work / "moved"), lambda run: shutil.rmtree(run.parent, ignore_errors=True))):
            with self.subTest(number):
                run = self.artifacts / "run"
                shutil.rmtree(run, ignore_errors=True)
                process = self.start_run()
                before = results_log(run)[0]["target"]
                remove(run)
                _, err = self.finish(process)
                self.assertIn("results.jsonl was removed or moved away while the run went on, and is written anew", err)
                self.assertIn("continue with --resume artifacts/run", err)
                self.assertIn(before, [pair["target"] for pair in results_log(run)])
                for name in ("manifest.json", "effective_configuration.json", "benchmark_test_results.json", "results.csv"):
                    self.assertTrue((run / name).exists(), name)
                self.assertTrue((run / before.replace(":", "_") / "results/benchmark_test_results.json").exists())
                resumed = self.call("run", "--resume", "run")
                self.assert_code(resumed, 0)
                self.assertIn("were done already", resumed.err)
                self.assertEqual(sorted({pair["target"] for pair in results_log(run)}), self.TARGETS)

    def test_a_folder_that_another_run_took_is_left_alone(self):
        (self.work / "another").write_text("another's")
        process = self.start_run()
        (self.work / "another").replace(self.artifacts / "run/results.jsonl")
        _, err = self.finish(process)
        self.assertIn("was replaced by another file while the run went on", err)
        self.assertNotIn("--resume", err)
        self.assertEqual((self.artifacts / "run/results.jsonl").read_text(), "another's")
        self.assertFalse((self.artifacts / "run/benchmark_test_results.json").exists())

    def test_links_in_it_are_not_followed(self):
        self.run_pairs("ch90:good", flags=("--run-id", "sent"))
        precious = self.work / "precious"
        precious.write_text("mine")
        report = self.artifacts / "sent/report.html"
        report.symlink_to(precious)
        self.assert_code(self.call("report", "sent", "--html"), 0)
        self.assertFalse(report.is_symlink())
        self.assertIn("<!DOCTYPE html>", report.read_text())
        for name in ("manifest.json", "results.jsonl", "ch90_good/output.log", "ch90_good"):
            with self.subTest(name):
                file = self.artifacts / "sent" / name
                file.rename(self.work / "moved")
                file.symlink_to(self.work / "moved")
                before = precious.read_text(), {path: path.read_bytes() for path in self.work.glob("moved*") if path.is_file()}
                finished = self.call("run", "--resume", "sent")
                self.assert_code(finished, 2)
                self.assert_one_error_line(finished, f"sent/{name} is a link")
                self.assertEqual(before, (precious.read_text(), {path: path.read_bytes() for path in self.work.glob("moved*") if path.is_file()}))
                file.unlink()
                (self.work / "moved").rename(file)
        self.assert_code(self.call("run", "--resume", "sent"), 0)

    def test_clean_leaves_what_others_made(self):
        self.run_pairs("ch90:good", flags=("--run-id", "ours"))
        for name, file, text in (("extension", "manifest.json", '{"manifest_version": 3, "name": "mine"}'), ("empty", "manifest.json", "{}"),
                                 ("notes", "results.jsonl", '{"note": 1}\n')):
            (self.artifacts / name).mkdir()
            (self.artifacts / name / file).write_text(text)
            (self.artifacts / name / "important.txt").write_text("x")
        finished = self.call("clean")
        self.assert_code(finished, 0)
        self.assertEqual(sorted(path.name for path in self.artifacts.iterdir()), ["empty", "extension", "notes"])
        for name in ("extension", "empty", "notes"):
            self.assertTrue((self.artifacts / name / "important.txt").exists())
            self.assertIn(f"kept artifacts/{name}: ", finished.out)


if __name__ == "__main__":
    unittest.main()
