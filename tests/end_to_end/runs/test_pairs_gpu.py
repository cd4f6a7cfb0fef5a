# SPDX-License-Identifier: Apache-2.0
"""All pairs of aisp on this machine's GPUs: right at full size, twice with different inputs, and measured without a complaint."""
import json
import unittest

from harness import AISP, EndToEnd, everything_said


class ShippedPairs(EndToEnd):
    def setUp(self):
        super().setUp()
        self.gpus = json.loads(self.call("doctor", "--json", program=AISP).out)["machine"]["gpus"]
        if not self.gpus:
            self.skipTest("no GPU")
        self.targets = json.loads(self.call("list-targets", "--json", program=AISP).out)

    def runnable(self):
        sm = min(gpu["sm"] for gpu in self.gpus)
        return {t["target"] for t in self.targets if t["gpus"] <= len(self.gpus) and t["min_sm"] <= sm}

    def check_suite(self, finished):
        pairs = {pair["target"]: pair for pair in json.loads(finished.out)["pairs"]}
        self.assertEqual(set(pairs), {target["target"] for target in self.targets})
        for target, pair in pairs.items():
            with self.subTest(target):
                self.assertIn(pair["status"], ("passed", "skipped"), everything_said(pair))
                if pair["device"] == "gpu" and target in self.runnable():
                    self.assertEqual(pair["status"], "passed", everything_said(pair))
        return pairs

    def test_all_pairs_are_right(self):
        for seed in ("42", "43"):
            finished = self.call("verify", "--seed", seed, "--json", "-", "--artifacts-dir", str(self.work / seed), program=AISP, timeout=1200)
            self.check_suite(finished)

    def test_all_pairs_are_measured(self):
        finished = self.call("run", "--budget", "1s", "--json", "-", program=AISP, timeout=1200)
        self.assert_code(finished, 0)
        for target, pair in self.check_suite(finished).items():
            if pair["status"] == "passed":
                with self.subTest(target):
                    self.assertTrue(pair["best"])
                    self.assertGreater(max(v["speedup"]["value"] for v in pair["variants"][1:] if v.get("speedup")), 1)
                    if pair["judged_by"] != "time":
                        self.assertEqual([v["name"] for v in pair["variants"] if "floor" in v], [], "a floor of what is not judged")


if __name__ == "__main__":
    unittest.main()
