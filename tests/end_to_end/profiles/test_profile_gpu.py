# SPDX-License-Identifier: Apache-2.0
"""--profile minimal on a GPU: known pairs have the kernels that their source launches, and without CUPTI the result is still there."""
import json
import shutil
import unittest

from harness import AISP, QUICK, EndToEnd, variant
from schemas import mistakes


class GpuProfile(EndToEnd):
    def setUp(self):
        super().setUp()
        if not json.loads(self.call("doctor", "--json", program=AISP).out)["machine"]["gpus"]:
            self.skipTest("no GPU")

    def profiled(self, target, **keywords):
        return self.call("run", "-t", target, *QUICK, "--profile", "minimal", program=AISP, **keywords)

    def test_transpose_is_one_kernel_a_variant(self):
        finished = self.profiled("ch07:transpose")
        self.assert_code(finished, 0)
        pair = finished.pair("ch07:transpose")
        self.assertEqual(mistakes(pair, "result"), [])
        for each in pair["variants"]:
            profile = each["profile"]
            self.assertEqual((profile["launches"], profile["launch_calls"]), (1, 1))
            self.assertAlmostEqual(profile["kernel_ms"], each["timing"]["median_ms"], delta=0.2 * each["timing"]["median_ms"])
            trace = json.loads((finished.folder / profile["trace"]).read_text())
            kinds = [event.get("cat") for event in trace["traceEvents"] if event["ph"] == "X"]
            self.assertEqual(kinds.count("kernel"), 1)
            self.assertGreaterEqual(kinds.count("call"), 1)
        self.assertIn("kernel time fell", finished.out)

    def test_without_cupti_the_result_stands(self):
        # A library that has the name and none of the functions.
        libc = next(line.split()[-1] for line in open("/proc/self/maps", encoding="utf-8") if line.rstrip().endswith("/libc.so.6"))
        other = self.work / "other"
        other.mkdir()
        for version in ("", ".12", ".13"):
            shutil.copy(libc, other / f"libcupti.so{version}")
        finished = self.profiled("ch07:transpose", env={"AISP_LIBRARY_PATH": str(other)})
        self.assert_code(finished, 0)
        pair = finished.pair("ch07:transpose")
        self.assertGreater(variant(pair, pair["best"])["speedup"]["value"], 1)
        self.assertEqual(len([lost for lost in pair["lost"] if lost["kind"] == "profile"]), 1, pair["lost"])
        self.assertEqual(len([line for line in finished.out.splitlines() if "no profile" in line]), 1, finished.out)


if __name__ == "__main__":
    unittest.main()
