# SPDX-License-Identifier: Apache-2.0
"""An executable that most pairs were left out of, as ./setup.sh --chapters builds one: they are not built, and every command says so."""
import json
import os
import unittest

from harness import FIXTURES, QUICK, SOURCE, EndToEnd
from schemas import mistakes

PART = os.environ.get("AISP_PART", str(SOURCE / "build/dev/tests/aisp_part"))
COMMAND = "./setup.sh --chapters ch90:good,ch90:equal"


class NotBuilt(EndToEnd):
    def part(self, *arguments, **keywords):
        return self.call(*arguments, program=PART, **keywords)

    def test_lists_name_them_with_the_command(self):
        everything = [line.split()[0] for line in self.call("list-targets", program=FIXTURES).out.splitlines()]
        lines = self.part("list-targets").out.splitlines()
        self.assertLessEqual(set(line.split()[0] for line in lines), set(everything))
        self.assertIn("ch90:good", [line.split()[0] for line in lines if "not built" not in line])
        self.assertRegex(next(line for line in lines if line.startswith("ch90:equal ")), f"ch90:equal +not built; {COMMAND} builds it$")
        targets = json.loads(self.part("list-targets", "--json").out)
        self.assertEqual(mistakes(targets, "targets"), [])
        self.assertEqual([target["target"] for target in targets], [line.split()[0] for line in lines])
        (equal,) = [target for target in targets if target["target"] == "ch90:equal"]
        self.assertEqual((equal["built"], equal["build_with"]), (False, COMMAND))
        self.assertEqual([target["target"] for target in targets if target["built"]], ["ch90:good"])

    def test_a_selection_of_nothing_else_ends_with_5_and_the_command(self):
        for command in ("run", "verify"):
            with self.subTest(command):
                finished = self.part(command, "--targets", "ch90:equal")
                self.assert_code(finished, 5)
                self.assert_one_error_line(finished, f"ch90:equal is not built; {COMMAND} builds it")
                self.assertFalse(self.artifacts.exists())
        finished = self.part("run", "--targets", "ch88,ch89")
        self.assert_code(finished, 5)
        self.assertRegex(finished.err, r"ch88:\w+ and \d+ more are not built; ./setup.sh --chapters ch90:good,ch88,ch89 builds them")
        self.assert_code(self.part("run", "--targets", "ch90:equla"), 2)

    def test_a_run_of_both_reports_them_as_not_built(self):
        for command, flags in (("run", QUICK), ("verify", ())):
            with self.subTest(command):
                finished = self.part(command, "--targets", "ch90:good,ch90:equal", *flags, "--run-id", command)
                self.assert_code(finished, 0)
                self.assertIn("1 passed, 1 skipped", finished.out)
                self.assertIn(f"not built; {COMMAND}", finished.out)
                folder = self.artifacts / command
                suite = json.loads((folder / "benchmark_test_results.json").read_text())
                self.assertEqual(mistakes(suite, "suite"), [])
                self.assertEqual({pair["target"]: pair["status"] for pair in suite["pairs"]}, {"ch90:good": "passed", "ch90:equal": "skipped"})
                self.assertIn(f"not built; {COMMAND} builds it", (folder / "benchmark_test_results.md").read_text())
                self.assertFalse((folder / "ch90_equal").exists(), "there is nothing to write")
                self.assertIn("not built", self.part("report", command, "--html", "-").out)

    def test_without_targets_the_rest_is_not_built(self):
        finished = self.part("verify")
        self.assert_code(finished, 0)
        self.assertRegex(finished.out, r"pairs +1 registered, \d+ not built, 1 selected")
        self.assertIn("not built; ./setup.sh builds it", finished.out)

    def test_expectations_of_what_is_not_built_are_neither_missing_nor_regressed(self):
        both = ("--targets", "ch90:good,ch90:equal", *QUICK)
        self.assert_code(self.call("run", *both, "--update-expectations", "--run-id", "whole"), 0)
        self.assert_code(self.part("run", *both, "--run-id", "part"), 0)
        analysis = json.loads(self.part("analyze", "part", "--strict", "--threshold", "90", "--json", "-").out)
        (row,) = [row for row in analysis["rows"] if row["target"] == "ch90:equal"]
        self.assertEqual((row["finding"], row["lost_coverage"]), ("skipped", False))
        self.assertEqual(row["detail"], f"not built; {COMMAND} builds it")
        self.assert_code(self.part("analyze", "--history"), 0)
        self.assertNotIn("ch90:equal", json.loads(self.part("compare", "whole", "part", "--json", "-").out)["only_before"])

    def test_other_commands(self):
        finished = self.part("explain", "ch90:equal")
        self.assert_code(finished, 5)
        self.assert_one_error_line(finished, f"ch90:equal is not built; {COMMAND} builds it")
        self.assertRegex(self.part("--version").out, r"(?m)^pairs +1 of \d+, chosen with --chapters ch90:good$")
        self.assertNotIn("pairs", self.call("--version").out)


if __name__ == "__main__":
    unittest.main()
