# SPDX-License-Identifier: Apache-2.0
"""Completion in real shells, and a man page that the formatter accepts; both know every command and flag."""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import unittest

from harness import AISP, EndToEnd

ASK = """
source completion.bash
COMP_LINE=$1 COMP_POINT=${#1}
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_aisp
printf '%s\\n' "${COMPREPLY[@]}"
"""


class Completion(EndToEnd):
    def script(self, shell):
        finished = self.call("completion", shell, program=AISP)
        self.assert_code(finished, 0)
        (self.work / f"completion.{shell}").write_text(finished.out)
        return finished.out

    def shell(self, *command):
        path = f"{pathlib.Path(AISP).parent}:{os.environ['PATH']}"
        finished = subprocess.run(command, cwd=self.work, env=self.environment({"PATH": path}), capture_output=True, text=True, timeout=60)
        self.assertEqual(finished.stderr, "")
        self.assertEqual(finished.returncode, 0)
        return finished.stdout.split()

    def commands(self):
        lines = self.call("--help", program=AISP).out.split("Subcommands:")[1].split("\n\n")[0].splitlines()
        return [line.split()[0] for line in lines if re.match(r"  [a-z]", line)]

    def test_bash(self):
        self.script("bash")

        def ask(*words):
            return self.shell("bash", "--norc", "-c", ASK, "ask", " ".join(words), *words)

        self.assertEqual(ask("aisp", "ver"), ["verify"])
        self.assertEqual(set(self.commands()) - set(ask("aisp", "")), set())
        self.assertEqual(ask("aisp", "run", "--fixed"), ["--fixed-iterations"])
        self.assertIn("ch03:false_sharing", ask("aisp", "run", "--targets", "ch03"))
        # As readline cuts it: a word up to the colon, the colon, the rest.
        line = "aisp run -t ch03:false"
        self.assertEqual(self.shell("bash", "--norc", "-c", ASK, "ask", line, "aisp", "run", "-t", "ch03", ":", "false"), ["false_sharing"])
        self.assertEqual(ask("aisp", "run", "--color", "al"), ["always"])

    def need(self, program):
        if shutil.which(program) is None:
            self.skipTest(f"{program} is not installed")

    def test_zsh_and_fish_accept_theirs(self):
        for shell in ("zsh", "fish"):
            text = self.script(shell)
            for command in self.commands():
                self.assertIn(command, text)
            with self.subTest(shell):
                self.need(shell)
                self.shell(shell, "-n", f"completion.{shell}")
        with self.subTest("answers of fish"):
            self.need("fish")
            answers = self.shell("fish", "--no-config", "-c", "source completion.fish; complete -C 'aisp ver'; complete -C 'aisp run --targets ch03:false'")
            self.assertIn("verify", answers)
            self.assertIn("ch03:false_sharing", answers)

    def test_man_page_says_what_help_says(self):
        page = self.script("man")
        self.assertIn(r"\-\-fixed\-iterations", page)
        with self.subTest("groff"):
            self.need("groff")
            self.shell("groff", "-man", "-Tutf8", "-ww", "-z", "completion.man")
            plain = subprocess.run(["groff", "-man", "-Tascii", "-P-cbou", "-rLL=400n", "completion.man"], cwd=self.work, capture_output=True,
                                   text=True, timeout=60).stdout
            for command in self.commands():
                self.assertIn(f"aisp {command}", plain)
            self.assertIn("--require-confirmation", plain)

    def test_unknown_shell(self):
        finished = self.call("completion", "tcsh", program=AISP)
        self.assert_code(finished, 2)
        self.assert_one_error_line(finished, "tcsh", "bash, zsh, fish")


if __name__ == "__main__":
    unittest.main()
