# SPDX-License-Identifier: Apache-2.0
"""Pairs that are declared wrongly are refused before anything runs, and costs that cannot be are no results."""
import unittest

from harness import AISP, EndToEnd, everything_said, problems

WRONG = "ch88:declared_wrongly"
FILE = "tests/pairs/ch88/declared_wrongly.cpp"


class Declarations(EndToEnd):
    def refused(self, *arguments):
        finished = self.call(*arguments)
        self.assert_code(finished, 2)
        self.assert_one_error_line(finished, "3 faults")
        self.assertIn(f"aisp: {FILE}: two of its variants are called 'doubled'\n", finished.err)
        self.assertIn(f"aisp: {FILE}: .lesson is 'tripled', which is none of the optimized variants\n", finished.err)
        self.assertIn(f"aisp: {FILE}: case 'small' of its sweep: there is no size 'row'; its sizes are rows\n", finished.err)
        self.assertFalse(self.artifacts.exists())
        self.assertEqual(finished.out, "")

    def test_nothing_runs_beside_a_pair_with_faults(self):
        self.refused("run", "-t", f"{WRONG},ch90:good")
        self.refused("run", "-t", f"{WRONG},ch90:good", "--sweep")
        self.refused("run", "-t", WRONG, "--dry-run")
        self.refused("verify", "-t", f"ch90:good,{WRONG}")

    def test_pairs_that_were_not_chosen_do_not_matter(self):
        self.assert_code(self.run_pairs("ch90:good"), 0)

    def test_pairs_that_are_shipped_have_none(self):
        finished = self.call("run", "--dry-run", program=AISP)
        self.assert_code(finished, 0)
        self.assertEqual(finished.err, "")

    def test_it_can_be_listed(self):
        self.assert_code(self.call("list-targets", "-t", WRONG), 0)


class Costs(EndToEnd):
    def test_costs_that_no_workload_has_fail_before_anything_runs(self):
        finished = self.call("verify", "-t", "ch88:impossible_cost")
        self.assert_code(finished, 1)
        pair = finished.pair("ch88:impossible_cost")
        found = {error["variant"]: error["message"] for error in pair["errors"] if error["check"] == "declared_cost"}
        self.assertEqual(found, {"on_a_device": "its declared cost has 1e+06 bytes, but it runs on the host",
                                 "negative": "its declared cost has -1e+06 host_bytes",
                                 "free": "its declared cost is nothing at all"})
        self.assertEqual(list(pair["watchdog"]), ["setup"])

    def test_time_far_below_what_the_cost_takes_at_the_measured_ceiling(self):
        self.assert_code(self.call("peak", "--quick", env={"CUDA_VISIBLE_DEVICES": ""}), 0)
        finished = self.run_pairs("ch88:overpriced", "ch90:good")
        self.assert_code(finished, 1)
        self.assertEqual(finished.pair("ch90:good")["status"], "passed", everything_said(finished.pair("ch90:good")))
        pair = finished.pair("ch88:overpriced")
        self.assertEqual(pair["status"], "failed")
        self.assertRegex(problems(pair), r"faster than \d+ CPUs can be")
        self.assertEqual({error["check"] for error in pair["errors"]}, {"possible_time"})

    def test_without_a_measured_ceiling_what_no_processor_can_do_is_told(self):
        finished = self.run_pairs("ch88:overpriced")
        self.assert_code(finished, 1)
        self.assertRegex(problems(finished.pair("ch88:overpriced")), r"faster than \d+ CPUs can be")


class Limits(EndToEnd):
    def test_limit_far_above_the_error(self):
        finished = self.call("verify", "-t", "ch88:loose")
        self.assert_code(finished, 0)
        self.assertRegex(finished.out, r"ch88:loose .* 2 variants verified, relative L2 error at most 5\.\de-06 of 2\.0e-02 allowed \(nearly\)")
        self.assertRegex(everything_said(finished.pair("ch88:loose")),
                         r"nearly: its tolerance allows a relative L2 error of 0\.02, and 5e-06 was found")
        self.assertEqual(self.call("verify", "-t", "ch90:good", "--run-id", "b").out.count("allowed"), 0, "exact is exact")


class Constants(EndToEnd):
    def test_a_pair_whose_inputs_never_change_is_marked(self):
        finished = self.call("verify", "-t", "ch88:unchanging")
        self.assert_code(finished, 0)
        self.assertRegex(everything_said(finished.pair("ch88:unchanging")), "all inputs are declared constant")

    def test_others_are_not(self):
        self.assertNotRegex(everything_said(self.call("verify", "-t", "ch88:loose").pair("ch88:loose")), "declared constant")


class Namesakes(EndToEnd):
    def test_equal_names_of_classes_and_methods_are_two_bodies(self):
        finished = self.call("verify", "-t", "ch88:two_times,ch88:three_times")
        self.assert_code(finished, 0)


if __name__ == "__main__":
    unittest.main()
