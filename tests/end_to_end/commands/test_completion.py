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

    def offered(self, *words):
        finished = self.call("__complete", *words, program=AISP)
        self.assert_code(finished, 0)
        return [line.split("\t")[0] for line in finished.out.splitlines()]

    def test_what_is_offered_is_accepted(self):
        """Each word that completion offers for an option, given to it."""
        for option, before in (("--mode", ("run", "-t", "ch01:ilp_basic", "--list")), ("--profile", ("run", "-t", "ch01:ilp_basic", "--list")),
                               ("--color", ("run", "-t", "ch01:ilp_basic", "--list")), ("--model", ("estimate",)),
                               ("--gpu", ("estimate", "--model", "llama-3-8b")), ("--dtype", ("estimate", "--model", "llama-3-8b")),
                               ("--kv-dtype", ("estimate", "--model", "llama-3-8b"))):
            words = self.offered(*before, option, "")
            self.assertTrue(words, option)
            for word in words:
                with self.subTest(option, word=word):
                    self.assert_code(self.call(*before, option, word, program=AISP), 0)

    def test_offers(self):
        self.assertIn("ch01:ilp_basic,ch03:false_sharing", self.offered("run", "--targets", "ch01:ilp_basic,ch03:false"))
        self.assertIn("--targets=ch01:ilp_basic,ch03", self.offered("run", "--targets=ch01:ilp_basic,ch03"))
        self.assertEqual(self.offered("run", "--config", ""), [":files"])
        self.assertEqual(self.offered("run", "--resume", ""), ["latest", ":files"])
        for words in (("run", "--iterations", ""), ("no-command", ""), ("clean", "")):
            self.assertEqual(self.offered(*words), [])
        self.assertIn("--list\t", self.call("__complete", "run", "--list", program=AISP).out, "with its description")

    def need(self, program):
        if shutil.which(program) is None:
            self.skipTest(f"{program} is not installed")

    def test_fish(self):
        self.script("fish")
        self.need("fish")
        self.assertEqual(self.fish("aisp ver"), ["verify"])
        self.assertIn("ch03:false_sharing", self.fish("aisp run --targets ch03:false"))
        self.assertIn("ch01:ilp_basic,ch03:false_sharing", self.fish("aisp run --targets ch01:ilp_basic,ch03:false"))
        self.assertIn("--color=always", self.fish("aisp run --color=al"))
        self.assertIn("--fixed-iterations", self.fish("aisp run --fixed"))
        self.assertEqual(self.fish("aisp estimate --dtype fp8"), ["fp8"])
        self.assertIn("latest", self.fish("aisp compare la"))
        (self.work / "picture.svg").touch()
        self.assertEqual(self.fish("aisp roofline --svg pic"), ["picture.svg"])

    def fish(self, line):
        script = 'source completion.fish; complete -C "$argv"'
        finished = subprocess.run(("fish", "--no-config", "-c", script, line), cwd=self.work, text=True, capture_output=True, timeout=60,
                                  env=self.environment({"PATH": f"{pathlib.Path(AISP).parent}:{os.environ['PATH']}"}))
        self.assertEqual(finished.stderr, "")
        return [answer.split("\t")[0] for answer in finished.stdout.splitlines()]

    def test_zsh(self):
        """The script hands zsh's own functions the words of aisp."""
        self.script("zsh")
        self.need("zsh")
        self.shell("zsh", "-n", "completion.zsh")

        def ask(*words):
            given = " ".join(map(shlex.quote, words))
            return self.shell("zsh", "-f", "-c", f"compdef() {{ }}; _describe() {{ print -rl -- ${{(P)3}} }}; _files() {{ print files }}; compset() {{ }}\n"
                              f"source completion.zsh; words=({given}) CURRENT={len(words)} PREFIX={shlex.quote(words[-1])}; _aisp")

        self.assertTrue(ask("aisp", "ver")[0].startswith("verify:"))
        self.assertEqual(ask("aisp", "run", "--targets", "ch01:ilp_basic,ch03:false_s"), [r"ch01\:ilp_basic,ch03\:false_sharing"])
        self.assertEqual(ask("aisp", "run", "--color=al"), ["--color=always"])
        self.assertEqual(ask("aisp", "compare", "la"), ["latest", "files"])

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
