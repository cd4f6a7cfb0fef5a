# SPDX-License-Identifier: Apache-2.0
"""The same code twice on a GPU, in kernels from a launch's length on: no verdict; and one when five percent are planted."""
import json
import unittest

from harness import EndToEnd

PAIRS = ("ch90:gpu_equal_add", "ch90:gpu_equal_short", "ch90:gpu_equal_long")


class SameCode(EndToEnd):
    def setUp(self):
        super().setUp()
        if not json.loads(self.call("doctor", "--json").out)["machine"]["gpus"]:
            self.skipTest("no GPU")

    def verdicts(self, run_id, **keywords):
        self.assert_code(self.call("run", *PAIRS, "--run-id", run_id, timeout=300, **keywords), 0)
        lines = [json.loads(line) for line in (self.artifacts / run_id / "results.jsonl").read_text().splitlines()[1:]]
        return {pair["target"]: pair["variants"][1]["speedup"] for pair in lines}

    def test_identical_code_gets_no_verdict(self):
        for name, speedup in self.verdicts("same").items():
            with self.subTest(name):
                self.assertEqual(speedup["verdict"], "cannot_tell")
                self.assertLess(abs(speedup["value"] - 1), 0.02)
                self.assertLess(speedup["low"], speedup["high"])

    def test_planted_five_percent_are_slower(self):
        speedup = self.verdicts("planted", env={"AISP_FIXTURE_SLOWED_PERCENT": "5"})["ch90:gpu_equal_long"]
        self.assertEqual(speedup["verdict"], "slower")
        self.assertLess(abs(speedup["value"] - 1 / 1.05), 0.005)


if __name__ == "__main__":
    unittest.main()
