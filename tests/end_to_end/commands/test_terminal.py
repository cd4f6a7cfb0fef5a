# SPDX-License-Identifier: Apache-2.0
"""The output of every command on terminals of several widths, and in a pipe."""
import re
import unittest

from harness import AISP, QUICK, SOURCE, EndToEnd

EXPECTATIONS = str(SOURCE / "expectations")
# Not the redrawn line of progress: "\r" begins it.
COLOUR = re.compile("\x1b\\[[0-9;]*m")
# Nothing can be done for a path, a URL or an identifier that is wider than what is left of the screen.
LONG_WORD = re.compile(r"\S{20,}")


def lines_of(text):
    return [COLOUR.sub("", line.split("\r")[-1].replace("\x1b[K", "")) for line in text.split("\n")]


class Widths(EndToEnd):
    def setUp(self):
        super().setUp()
        for name in ("a", "b"):
            self.assert_code(self.run_pairs("ch90:good", "ch90:equal", "ch95:gpu_only", flags=("--run-id", name)), 0)

    def commands(self):
        yield from ((name, "--help") for name in ("run", "verify", "list-targets", "analyze", "compare", "doctor", "report", "roofline",
                                                  "selftest", "peak", "clean", "specs", "estimate", "explain", "completion"))
        yield from (("--help",), ("--version",), ("list-targets",), ("explain",), ("explain", "ch01:coalescing"), ("doctor",),
                    ("doctor", "--topology"), ("specs",), ("specs", "--source"), ("estimate", "--model", "llama-3-8b"),
                    ("estimate", "--model", "llama-3-405b", "--gpu", "gb300", "--tokens-per-second", "9"), ("estimate", "--model", "llama-3-70b", "--gpu", "all"),
                    ("analyze", "a", "--expectations-dir", EXPECTATIONS), ("analyze", "--history", "--all"),
                    ("compare", "a"), ("compare", "a", "b", "--all"), ("roofline", "--expectations-dir", EXPECTATIONS),
                    ("run", "--dry-run"), ("run", "--list"), ("clean", "--dry-run"), ("report",), ("no-such-command",))

    def shown(self, width, *arguments):
        return self.on_terminal(*arguments, width=width, code=self.call(*arguments, program=AISP).code, program=AISP,
                                env={"LC_ALL": "C"})

    def assert_fits(self, text, width, arguments):
        for line in lines_of(text):
            if len(line) > width:
                self.assertRegex(line, LONG_WORD, f"{arguments} at {width}")
                # A word that had to stand alone, not a line that was left as it was.
                self.assertLessEqual(len(line.strip().split()), 2, f"{arguments} at {width}: {line}")

    def test_no_line_passes_the_edge(self):
        for arguments in self.commands():
            in_a_pipe = self.call(*arguments, program=AISP)
            words = sorted((in_a_pipe.out + in_a_pipe.err).split())
            for width in (60, 80, 100, 200):
                with self.subTest(arguments=arguments, width=width):
                    seen = self.shown(width, *arguments)
                    self.assert_fits(seen, width, arguments)
                    # The same words, whatever the width: nothing is cut off.
                    if arguments[0] not in ("doctor", "report", "no-such-command"):  # what doctor finds changes
                        self.assertEqual(sorted(COLOUR.sub("", seen).split()), words)

    def test_a_run_at_80_columns(self):
        seen = self.on_terminal("run", "-t", "ch90:good,ch90:equal,ch95:gpu_only", *QUICK, "--run-id", "c", width=80)
        self.assert_fits(seen, 80, "run")
        speedups = [line for line in lines_of(seen) if re.search(r"[0-9]x \[[0-9.]+, [0-9.]+\]", line)]
        self.assertEqual(len(speedups), 2, seen)

    def test_columns_are_as_wide_as_the_names_of_the_selection(self):
        finished = self.run_pairs("ch90:good", "ch90:judged_metric")
        self.assert_code(finished, 0)
        lines = [line for line in finished.out.splitlines() if re.match(r"ch90:\w+  ", line)]  # and no warnings
        self.assertEqual({line.index("doubled") for line in lines}, {len("ch90:judged_metric") + 2})
        self.assertEqual(len(lines), 2)

    def test_a_pipe_is_not_laid_out(self):
        widest = max(len(line) for line in self.call("explain", program=AISP, env={"COLUMNS": "80"}).out.splitlines())
        self.assertGreater(widest, 100)

    def test_micro_where_the_locale_has_it(self):
        arguments = ("roofline", "--expectations-dir", EXPECTATIONS, "--chapter", "ch01")
        for variables, shown in (({"LC_ALL": "C.UTF-8"}, "µs"), ({"LC_ALL": "", "LC_CTYPE": "", "LANG": "en_US.utf8"}, "µs"),
                                 ({"LC_ALL": "C", "LANG": "C.UTF-8"}, "us")):
            with self.subTest(variables):
                seen = self.on_terminal(*arguments, program=AISP, env=variables)
                self.assertRegex(seen, f"[0-9] {shown}\\b")
                self.assertNotRegex(seen, "[0-9] us\\b" if shown == "µs" else "µ")
        self.assertRegex(self.call(*arguments, program=AISP, env={"LC_ALL": "C.UTF-8"}).out, r"[0-9] us\b")


if __name__ == "__main__":
    unittest.main()
