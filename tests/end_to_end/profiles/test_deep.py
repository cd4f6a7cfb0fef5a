# SPDX-License-Identifier: Apache-2.0
"""verify --deep and --profile full where no counters can be read: said in a line, and nothing else is lost."""
import json
import unittest

from harness import EndToEnd


class Deep(EndToEnd):
    def test_every_pair_is_in_the_table_with_the_reason_why_it_was_not_compared(self):
        finished = self.call("verify", "--deep", "-t", "ch90:good,ch95:gpu_only", env={"CUDA_VISIBLE_DEVICES": ""})
        self.assert_code(finished, 0)
        rows = [line for line in finished.out.splitlines() if "not compared" in line]
        self.assertEqual([row.split()[0] for row in rows], ["ch90:good", "ch95:gpu_only"])
        self.assertIn("runs on the host", rows[0])

    def test_without_deep_there_is_no_table(self):
        finished = self.call("verify", "-t", "ch90:good")
        self.assert_code(finished, 0)
        self.assertNotIn("not compared", finished.out)

    def test_json_stays_json(self):
        finished = self.call("verify", "--deep", "-t", "ch90:good", "--json", "-")
        self.assert_code(finished, 0)
        self.assertEqual(json.loads(finished.out)["pairs"][0]["status"], "passed")

    def test_a_host_pair_is_timed_as_ever_at_profile_full(self):
        finished = self.run_pairs("ch90:good", flags=("--profile", "full"))
        self.assert_code(finished, 0)
        pair = finished.pair("ch90:good")
        self.assertEqual(pair["status"], "passed")
        self.assertFalse(any("counters" in variant for variant in pair["variants"]))


if __name__ == "__main__":
    unittest.main()
