# SPDX-License-Identifier: Apache-2.0
"""aisp selftest on this machine's GPU: no cheat slips through, no honest pair is accused."""
import json
import unittest

from harness import AISP, EndToEnd


class GpuSelftest(EndToEnd):
    def test_no_cheat_on_the_gpu_slips_through(self):
        if not json.loads(self.call("doctor", "--json", program=AISP).out)["machine"]["gpus"]:
            self.skipTest("no GPU")
        finished = self.call("selftest", "--gpu", "--json", program=AISP, timeout=600)
        report = json.loads(finished.out)
        for pair in report["pairs"]:
            with self.subTest(pair["name"]):
                self.assertEqual(pair["verdict"], "passed" if pair["honest"] else "caught", pair)
        self.assertGreaterEqual(sum(not pair["honest"] for pair in report["pairs"]), 40)
        self.assertGreaterEqual(sum(pair["honest"] for pair in report["pairs"]), 12)
        self.assertLess(report["wall_s"], 300)


if __name__ == "__main__":
    unittest.main()
