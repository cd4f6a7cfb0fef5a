# SPDX-License-Identifier: Apache-2.0
"""Options are read in the same way by all scripts, and what is wrong with them is told in the same way."""
import os
import re
import shlex
import subprocess
import unittest

from machine import SOURCE, Machine

# Script: an option with a value, a value that it refuses, words that it says then; an option without a value.
SCRIPTS = {
    "sanitize.sh": ("--jobs", "0", "'0'", None),
    "nightly.sh": ("--run-id", "../night", "'../night'", "--strict"),
    "gpu-setup.sh": ("--power-limit", "all", "'all'", "--check"),
    "system-tuning.sh": ("--huge-pages", "many", "'many'", "--check"),
    "reset-gpu.sh": ("--grace", "long", "'long'", "--dry-run"),
    "numa-topology.sh": ("--gpu", "0", "needs a command", "--check"),
}

# Scripts that go to the root of their tree, below it.
AT_HOME = ("setup.sh", ".ci/run", "scripts/check-arm64", "scripts/check-format", "scripts/lint", "scripts/nightly.sh", "scripts/package", "scripts/sanitize.sh", "scripts/tcgen05-probe",
           "tests/fuzz/run")


class Options(Machine):
    def refuses(self, script, arguments, *words):
        with self.subTest(script, arguments=arguments):
            result = self.run_script(script, *arguments)
            self.assert_refused(result, 2, *words, f"see {script} --help")
            self.assertTrue(result.stderr.startswith(f"{script}: "), result.stderr)
            self.assertEqual(result.stdout, "")

    def test_missing_values(self):
        for script, (option, *_) in SCRIPTS.items():
            for arguments in ([option], [option, ""], [f"{option}="], [option, "--help"]):
                self.refuses(script, arguments, f"{option} needs a value")

    def test_values_come_as_the_next_word_or_after_an_equals_sign(self):
        for script, (option, value, words, _) in SCRIPTS.items():
            self.refuses(script, [option, value], words)
            self.refuses(script, [f"{option}={value}"], words)

    def test_unknown_options(self):
        for script in SCRIPTS:
            for option in ("--bogus", "--bogus=1", "-z", "-", "--=x"):
                self.refuses(script, [option], f"unknown option '{option}'")

    def test_words_that_no_option_takes(self):
        for script in SCRIPTS:
            if script != "numa-topology.sh":
                self.refuses(script, ["word"], "unexpected argument 'word'")
            if script not in ("numa-topology.sh", "nightly.sh"):
                self.refuses(script, ["--", "word"], "unexpected argument 'word'")

    def test_options_that_take_no_value(self):
        for script, (*_, switch) in SCRIPTS.items():
            if switch:
                self.refuses(script, [f"{switch}=yes"], f"{switch} takes no value")

    def test_help_is_an_answer_and_no_error(self):
        for script, (option, *_) in SCRIPTS.items():
            for flag in ("-h", "--help"):
                with self.subTest(script, flag=flag):
                    result = self.run_script(script, flag, "--bogus")
                    self.assert_status(result, 0)
                    self.assertEqual(result.stderr, "")
                    self.assertTrue(result.stdout.startswith(f"usage: scripts/{script}"))
                    self.assertIn(f"{option} ", result.stdout)

    def commands(self, *arguments):
        """Returns the commands that nightly.sh would run."""
        result = self.run_script("nightly.sh", "--dry-run", *arguments)
        self.assert_status(result, 0)
        return [shlex.split(line) for line in result.stdout.splitlines()]

    def test_repeated_values_are_kept_and_of_others_the_last_counts(self):
        verify, run, _ = self.commands("--targets", "ch03", "--targets=ch10:*=*", "--threshold=3", "--threshold", "7")
        for words in (verify, run):
            self.assertEqual(words[2:6], ["--targets", "ch03", "--targets", "ch10:*=*"])
        self.assertEqual(run[run.index("--threshold") + 1], "7")

    def test_a_value_may_look_like_an_option_after_an_equals_sign(self):
        verify, _, _ = self.commands("--artifacts-dir=--odd folder")
        self.assertIn("--odd folder", verify)

    def test_options_that_contradict_each_other(self):
        for script in ("gpu-setup.sh", "system-tuning.sh", "numa-topology.sh"):
            self.refuses(script, ["--check", "--apply"], "--check and --apply exclude each other")
            self.refuses(script, ["--apply", "--check"], "--apply and --check exclude each other")
        self.refuses("system-tuning.sh", ["--apply", "--apply", "--reset"], "--apply and --reset exclude each other")
        self.assert_status(self.run_script("reset-gpu.sh", "--dry-run", "--dry-run", "--help"), 0)

    def test_nightly_refuses_what_aisp_would_refuse_later(self):
        for arguments, words in ((["--threshold", "abc"], "'abc'"), (["--threshold=100"], "'100'"), (["--threshold=-1"], "'-1'"),
                                 (["--run-id", "latest"], "'latest'"), (["--run-id=-x"], "'-x'"), (["--run-id", "a b"], "'a b'")):
            self.refuses("nightly.sh", ["--dry-run", *arguments], words)
        self.commands("--threshold", "2.5")

    def test_what_follows_two_dashes_is_passed_on_as_it_is(self):
        _, run, _ = self.commands("--run-id", "x", "--", "--jobs", "1", "--", "two words", "")
        self.assertEqual(run[-5:], ["--jobs", "1", "--", "two words", ""])


class Home(Machine):
    def test_a_script_works_in_its_own_tree_whatever_cdpath_says(self):
        other = self.work / "other"
        (other / "scripts").mkdir(parents=True)
        finished = subprocess.run(["bash", "scripts/nightly.sh", "--dry-run"], cwd=self.work, env={**os.environ, "CDPATH": str(other)},
                                  capture_output=True, text=True, timeout=60)
        self.assert_status(finished, 0)
        self.assertEqual(shlex.split(finished.stdout.splitlines()[0])[0], f"{self.work}/build/release/aisp")

    def test_all_scripts_go_there_in_the_same_words(self):
        words = re.compile(r"""CDPATH='' cd -- "\$\(dirname -- "\$\{BASH_SOURCE\[0\]\}"\)""")
        found = [path for path in [SOURCE / "setup.sh", SOURCE / ".ci/run", SOURCE / "tests/fuzz/run", *(SOURCE / "scripts").rglob("*")]
                 if path.is_file() and path.suffix != ".pyc" and re.search(r"(?m)^[^#]*\bcd\b[^\n]*dirname", path.read_text())]
        self.assertEqual({str(path.relative_to(SOURCE)) for path in found}, set(AT_HOME))
        for path in found:
            self.assertRegex(path.read_text(), words, path)


if __name__ == "__main__":
    unittest.main()
