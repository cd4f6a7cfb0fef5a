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
        # And at equals signs.
        line = "aisp run --targets=ch03:false"
        self.assertEqual(self.shell("bash", "--norc", "-c", ASK, "ask", line, "aisp", "run", "--targets", "=", "ch03", ":", "false"), ["false_sharing"])
        self.assertEqual(self.shell("bash", "--norc", "-c", ASK, "ask", "aisp run --color=", "aisp", "run", "--color", "="), ["auto", "always", "never"])
        line = "aisp run -t ch01:ilp_basic,ch03:false"
        self.assertEqual(self.shell("bash", "--norc", "-c", ASK, "ask", line, *line.replace(":", " : ").split()), ["false_sharing"])
        line = "aisp run -t ch01:ilp_basic,ch03"
        self.assertIn("ilp_basic,ch03:false_sharing", self.shell("bash", "--norc", "-c", ASK, "ask", line, *line.replace(":", " : ").split()))
        for name in ("monday", "tuesday"):
            (self.artifacts / name).mkdir(parents=True)
            (self.artifacts / name / "results.jsonl").touch()
        for words, answers in ((("run", "--color", "al"), ["always"]), (("run", "--mode", "do"), ["do_bench"]), (("run", "--profile", "mi"), ["minimal"]),
                               (("estimate", "--model", "mix"), ["mixtral-8x7b"]), (("estimate", "--gpu", "h200"), ["h200"]),
                               (("estimate", "--dtype", "fp8"), ["fp8"]), (("estimate", "--kv-dtype", "int"), ["int8", "int4"]), (("peak", "--gpu", ""), []),
                               (("run", "--resume", "mo"), ["monday"]), (("compare", "tu"), ["tuesday"]), (("compare", "monday", "la"), ["latest"]),
                               (("list-targets", "--chapter", "ch01"), ["ch01"]), (("explain", "regr"), ["regressed"]),
                               (("explain", "ch03:false"), ["ch03:false_sharing"]), (("specs", "b200"), ["b200"]), (("completion", "zs"), ["zsh"]),
                               (("run", "--iterations", ""), []), (("clean", ""), [])):
            with self.subTest(words):
                self.assertEqual(ask("aisp", *words), answers)

    def test_bash_runs_nothing_that_a_folder_is_called(self):
        self.script("bash")
        for name in ("$(touch ran)", "`touch ran`", "$HOME", "a b", "-rf", "x;touch ran", "*", "monday", "2026-11-28_10.00"):
            (self.artifacts / name).mkdir(parents=True)
            (self.artifacts / name / "results.jsonl").touch()
        for words in (("run", "--resume", ""), ("analyze", ""), ("compare", ""), ("report", ""), ("roofline", "")):
            with self.subTest(words):
                answers = self.shell("bash", "--norc", "-c", ASK, "ask", "aisp " + " ".join(words), "aisp", *words)
                self.assertEqual(sorted(answers), ["2026-11-28_10.00", "latest", "monday"])
        self.assertFalse((self.work / "ran").exists(), "a folder's name was run")

    def test_what_is_offered_is_accepted(self):
        """Each word that completion lists for an option, given to it."""
        cases = dict(re.findall(r"(?m)^    ([a-z-]+:--[a-z-]+)\S*.*offer=words words='([^']*)' ;;$", self.script("bash")))
        self.assertLessEqual({"run:--mode", "run:--profile", "run:--color", "estimate:--gpu", "estimate:--model", "estimate:--dtype"}, set(cases))
        rest = {"run": ("-t", "ch01:ilp_basic", "--list"), "estimate": ("--model", "llama-3-8b"), "verify": None, "analyze": None, "compare": None,
                "doctor": None, "selftest": None}
        for case, words in cases.items():
            command, option = case.split(":")
            if rest[command] is None:
                continue  # the same words, and these commands do more than read them
            for word in words.split():
                with self.subTest(case, word=word):
                    before = () if option == "--model" else rest[command]
                    self.assert_code(self.call(command, *before, option, word, program=AISP), 0)

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
            self.assertIn("ch01:ilp_basic,ch03:false_sharing", self.fish("aisp run --targets ch01:ilp_basic,ch03:false"))
            self.assertIn("--color=always", self.fish("aisp run --color=al"))
            self.assertEqual(self.fish("aisp estimate --dtype fp8"), ["fp8"])
            self.assertIn("latest", self.fish("aisp compare la"))

    def fish(self, line):
        answers = self.shell("fish", "--no-config", "-c", f"source completion.fish; complete -C '{line}'")
        return [answer.split("\t")[0] for answer in answers]

    def test_zsh_knows_values(self):
        text = self.script("zsh")
        for part in ("(auto always never)", "(events kernel do_bench timer)", "(none minimal full)", ":_aisp_targets all'", "compset -P '*,'",
                     "*--resume=", ":_aisp_runs'"):
            self.assertIn(part, text)

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
