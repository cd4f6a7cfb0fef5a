# SPDX-License-Identifier: Apache-2.0
"""Sizes that `aisp verify` checks and nobody times."""
import shutil
import unittest

from harness import EndToEnd


class Edges(EndToEnd):
    def test_a_fault_that_one_edge_shows_is_named(self):
        self.assert_code(self.run_pairs("ch88:tail_at_edge"), 0)
        shutil.rmtree(self.artifacts)
        finished = self.call("verify", "-t", "ch88:tail_at_edge")
        self.assert_code(finished, 1)
        pair = finished.pair("ch88:tail_at_edge")
        self.assertEqual(pair["edges"], ["empty", "one", "four"])
        self.assertEqual({problem["variant"] for problem in pair["errors"]}, {"forgetful"})
        for problem in pair["errors"]:
            self.assertEqual(problem["stage"], "edges")
            self.assertTrue(problem["message"].startswith("edge three_left (n=1023): "), problem["message"])
        self.assertIn("written", {problem["check"] for problem in pair["errors"]})
        self.assertIn("edge three_left (n=1023)", finished.out)

    def test_a_baseline_that_is_wrong_at_an_edge_ends_them(self):
        finished = self.call("verify", "-t", "ch88:baseline_at_edge")
        self.assert_code(finished, 1)
        pair = finished.pair("ch88:baseline_at_edge")
        self.assertEqual(pair["status"], "failed")
        self.assertEqual(pair["edges"], [])
        self.assertEqual({problem["variant"] for problem in pair["errors"]}, {"twice", "once"})
        for problem in pair["errors"]:
            self.assertTrue(problem["message"].startswith("edge one (n=1): "), problem["message"])

    def test_those_that_pass_are_told(self):
        finished = self.call("verify", "-t", "ch90:edged")
        self.assert_code(finished, 0)
        pair = finished.pair("ch90:edged")
        self.assertEqual(pair["edges"], ["empty", "one_row", "narrow"])
        self.assertIn("edges", pair["watchdog"])
        self.assertIn("2 variants verified", finished.out)
        self.assertIn("3 edges too", finished.out)

    def test_only_at_the_pairs_own_sizes_and_without_a_clock(self):
        self.assertEqual(self.call("verify", "-t", "ch90:edged", "--size", "rows=8").pair("ch90:edged")["edges"], [])
        shutil.rmtree(self.artifacts)
        self.assertEqual(self.run_pairs("ch90:edged").pair("ch90:edged")["edges"], [])


    def test_explain_names_them(self):
        said = self.call("explain", "ch90:edged").out
        self.assertRegex(said, r"edge +one_row: rows=1")
        self.assertRegex(said, r"size +rows: 512, or another from 0 to 65536")
        self.assertRegex(said, r"optimized +once \(the lesson, the same bits as twice\)")


if __name__ == "__main__":
    unittest.main()
