# SPDX-License-Identifier: Apache-2.0
"""Two runs with --reproducible on a GPU: the same bits in every output of every variant."""
import json
import unittest

from harness import AISP, QUICK, EndToEnd, results_log


class Reproducible(EndToEnd):
    def setUp(self):
        super().setUp()
        doctor = json.loads(self.call("doctor", "--json", program=AISP).out)
        if not doctor["machine"]["gpus"]:
            self.skipTest("no GPU")

    def test_gpu_pairs_give_the_same_bits_twice(self):
        targets = [word for chapter in ("ch07", "ch10", "ch11") for word in ("--targets", chapter)]
        digests = []
        for name in ("first", "second"):
            self.call("run", *targets, *QUICK, "--reproducible", "--run-id", name, program=AISP, timeout=500)
            pairs = [pair for pair in results_log(self.artifacts / name) if pair["status"] == "passed"]
            digests.append({(pair["target"], variant["name"]): variant["output_digests"]
                            for pair in pairs for variant in pair["variants"] if variant["status"] == "passed"})
        self.assertTrue(digests[0])
        self.assertEqual(digests[0], digests[1])
        self.assertTrue(all(digests[0].values()))
        self.assertNotIn("Outputs with other bits", self.call("compare", "first", "second", program=AISP).out)


if __name__ == "__main__":
    unittest.main()
