# SPDX-License-Identifier: Apache-2.0
"""Folders of runs that others sent or damaged, and a disk that is full before a run begins."""
import os
import shutil
import stat
import subprocess
import unittest

from harness import FIXTURES, QUICK, EndToEnd, results_log

# The disk has so much room for the start of a run and enough afterwards. Statuses go to the standard output, one a line.
FULL_DISK = """
mount -t tmpfs -o size=256k none small || exit 99
head -c 1m /dev/zero > small/filler 2> /dev/null
truncate -s -"$1"k small/filler
"$2" run -t ch90:good --artifacts-dir small --run-id nightly $3; echo $?
ls -A small
rm small/filler
mount -o remount,size=64m small
[ -e small/nightly ] && exit
"$2" run -t ch90:good --artifacts-dir small --run-id nightly $3; echo $?
"""


class PipesAndLinks(EndToEnd):
    def setUp(self):
        super().setUp()
        self.assert_code(self.run_pairs("ch90:good", flags=("--run-id", "ours")), 0)

    def read_all(self, name, *commands):
        for command in commands:
            with self.subTest(name, command=command):
                finished = self.call(*command, timeout=60)
                self.assertNotIn("internal", finished.err)
                yield finished

    def test_a_pipe_in_the_place_of_a_file_keeps_nobody_waiting(self):
        for name in ("results.jsonl", "manifest.json", "effective_configuration.json", ".lock", "ch90_good/output.log"):
            shutil.copytree(self.artifacts / "ours", self.artifacts / "z")
            (self.artifacts / "z" / name).unlink()
            os.mkfifo(self.artifacts / "z" / name, 0o444)
            for finished in self.read_all(name, ("analyze", "--history"), ("analyze", "z"), ("analyze", "latest"), ("report", "z", "--html"),
                                          ("compare", "z", "ours"), ("clean", "--dry-run"), ("run", "--resume", "z", "--dry-run")):
                self.assertNotEqual(finished.code, 1)
            with self.subTest(name):
                finished = self.call("run", "--resume", "z", timeout=60)
                self.assertIn(finished.code, (2, 4), finished.err)
                self.assert_one_error_line(finished, "z")
            shutil.rmtree(self.artifacts / "z")

    def test_a_pipe_is_good_where_the_user_names_it(self):
        os.mkfifo(self.work / "settings")
        process = self.start("run", "-t", "ch90:good", *QUICK, "--config", "settings", "--run-id", "piped")
        (self.work / "settings").write_text("seed = 7\n")
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, err)
        self.assertEqual(results_log(self.artifacts / "piped")[0]["seed"], 7)

    def test_what_a_second_name_leads_to_is_not_written(self):
        precious = self.work / "precious"
        for name in (".lock", "ch90_good/output.log", "results.jsonl"):
            with self.subTest(name):
                file = self.artifacts / "ours" / name
                text = file.read_text()
                shutil.copy(file, precious)
                file.unlink()
                os.link(precious, file)
                finished = self.call("run", "--resume", "ours", "-t", "ch90:equal")
                self.assertIn(finished.code, (2, 4), finished.err)
                self.assert_one_error_line(finished, f"ours/{name}", "hard link")
                self.assertEqual(precious.read_text(), text)
                file.unlink()
                file.write_text(text)
                precious.unlink()

    def test_a_run_is_held_by_those_who_may_write_it(self):
        finished = self.run_pairs("ch90:good", flags=("--run-id", "private"), preexec_fn=lambda: os.umask(0o077))
        self.assert_code(finished, 0)
        self.assertEqual(stat.S_IMODE((self.artifacts / "private/.lock").stat().st_mode), 0o600)


class DamagedRuns(EndToEnd):
    def test_only_those_that_were_named_are_an_error(self):
        for name in ("first", "second", "broken"):
            self.assert_code(self.run_pairs("ch90:good", flags=("--run-id", name)), 0)
        log = self.artifacts / "broken/results.jsonl"
        log.write_text(log.read_text().replace('"target"', '"tegrat"'))
        for command in (("analyze", "--history"), ("report", "first", "--html", "--history")):
            with self.subTest(command):
                finished = self.call(*command)
                self.assert_code(finished, 0)
                self.assertEqual(finished.err.count("artifacts/broken is left out: "), 1, finished.err)
        for command in (("analyze", "--history", "first", "broken"), ("analyze", "broken"), ("report", "broken", "--html")):
            with self.subTest(command):
                finished = self.call(*command)
                self.assert_code(finished, 2)
                self.assert_one_error_line(finished, "broken/results.jsonl:2")


class FullDisk(EndToEnd):
    def test_a_start_that_failed_leaves_its_name_free(self):
        (self.work / "small").mkdir()
        refused = 0
        for free_kib in (0, 4, 8, 12, 16, 20, 24, 28, 32):
            with self.subTest(free_kib=free_kib):
                done = subprocess.run(["unshare", "--mount", *(["--map-root-user"] if os.geteuid() != 0 else []), "sh", "-c", FULL_DISK, "sh",
                                       str(free_kib), FIXTURES, " ".join(QUICK)],
                                      cwd=self.work, env=self.environment(), capture_output=True, text=True, timeout=120, check=False)
                if done.returncode == 99 or "unshare:" in done.stderr:
                    self.skipTest("no mount namespace here")
                statuses = [line for line in done.stdout.splitlines() if line.isdigit()]
                if statuses[0] != "4" or "continue with --resume" in done.stderr:
                    continue  # it had room to begin
                refused += 1
                self.assertNotIn("\nnightly\n", done.stdout, "the folder of a run that never began")
                self.assertEqual(statuses, ["4", "0"], done.stderr)
        self.assertGreater(refused, 2)


if __name__ == "__main__":
    unittest.main()
