# SPDX-License-Identifier: Apache-2.0
"""Counters on a GPU: a declared cost that is off fails verify --deep, --profile full has every figure, peaks have what a run allocates."""
import json
import os
import unittest

from harness import AISP, QUICK, EndToEnd, variant
from schemas import mistakes

FIGURES = ("duration_us", "sm_throughput_percent", "memory_throughput_percent", "dram_read_bytes", "dram_write_bytes", "l2_hit_percent",
           "occupancy_percent", "tensor_pipe_percent", "bank_conflicts", "sectors_per_load", "sectors_per_store")
LISTENER = os.environ.get("AISP_NVTX_LISTENER", "")


class OnGpu(EndToEnd):
    def setUp(self):
        super().setUp()
        if not json.loads(self.call("doctor", "--json", program=AISP).out)["machine"]["gpus"]:
            self.skipTest("no GPU")


class Counters(OnGpu):
    def counted(self, *arguments, **keywords):
        finished = self.call(*arguments, **keywords)
        if "only root read hardware counters" in finished.err + finished.out:
            self.skipTest("counters are refused here")
        return finished

    def test_an_honest_declaration_passes(self):
        finished = self.counted("verify", "--deep", "-t", "ch07:transpose", program=AISP)
        self.assert_code(finished, 0)
        row = next(line for line in finished.out.splitlines() if line.startswith("ch07:transpose ") and "GiB" in line)
        self.assertTrue(row.rstrip().endswith("ok"), row)

    def test_a_declaration_twice_too_high_fails_the_pair(self):
        finished = self.counted("verify", "--deep", "-t", "ch89:overdeclared")
        self.assert_code(finished, 1)
        pair = finished.pair("ch89:overdeclared")
        self.assertEqual([problem["check"] for problem in pair["errors"]], ["declared_cost"])
        self.assertIn("moves less than the declared cost", pair["reason"])
        self.assert_code(self.call("verify", "-t", "ch89:overdeclared", "--run-id", "shallow"), 0)

    def test_full_gives_every_figure(self):
        finished = self.counted("run", "-t", "ch07:transpose", *QUICK, "--profile", "full", program=AISP)
        self.assert_code(finished, 0)
        pair = finished.pair("ch07:transpose")
        self.assertEqual(mistakes(pair, "result"), [])
        for each in pair["variants"]:
            with self.subTest(each["name"]):
                self.assertEqual([figure for figure in FIGURES if each["counters"].get(figure) is None], [])
                self.assertAlmostEqual(sum(stall["percent"] for stall in each["counters"]["stalls"]), 100, delta=0.01)
                self.assertEqual(len(each["profile"]["kernels"]), 1, "and all of minimal")
        self.assertGreater(variant(pair, "strided_writes")["counters"]["sectors_per_store"], 30)
        self.assertIn("Hardware counters of ch07:transpose", finished.out)


class OwnMemory(OnGpu):
    def test_a_peak_has_what_a_run_allocates_and_frees(self):
        finished = self.run_pairs("ch89:allocates", flags=("--profile", "minimal"))
        self.assert_code(finished, 0)
        pair = finished.pair("ch89:allocates")
        slow, doubled = (variant(pair, name)["memory"] for name in ("slow", "doubled"))
        self.assertEqual(slow["device_peak_bytes"] - slow["device_allocated_bytes"], 64 << 20)
        self.assertEqual(doubled["device_peak_bytes"], doubled["device_allocated_bytes"])
        trace = json.loads((finished.folder / variant(pair, "slow")["profile"]["trace"]).read_text())["traceEvents"]
        memory = [event["args"]["bytes"] for event in trace if event["ph"] == "C"]
        self.assertEqual(max(memory) - min(memory), 64 << 20, "the memory track")
        self.assertIn("with memory of its own", [event["name"] for event in trace if event["ph"] == "X"])
        self.assertIn("queued", [event["name"] for event in trace if event["ph"] == "i"])

    @unittest.skipUnless(os.path.exists(LISTENER), "nvtx_listener is not built")
    def test_an_execution_for_nsight_has_ranges_too(self):
        tool = self.work / "bin/nsys"
        tool.parent.mkdir()
        tool.write_text('#!/bin/sh\nwhile [ "$1" != --output ]; do shift; done\nreport=$2\nshift 2\necho report > "$report.nsys-rep"\nexec "$@"\n')
        tool.chmod(0o755)
        log = self.work / "nvtx.log"
        finished = self.run_pairs("ch89:allocates", flags=("--profile", "full"),
                                  env={"PATH": f"{tool.parent}:{os.environ['PATH']}", "NVTX_INJECTION64_PATH": LISTENER, "AISP_NVTX_LOG": str(log)})
        pair = finished.pair("ch89:allocates")
        self.assertEqual(variant(pair, "slow")["nsys_report"], "ch89_allocates/profiles/slow.nsys-rep")
        heard = {}
        for line in log.read_text().splitlines():
            process, rest = line.split(" ", 1)
            heard.setdefault(process, []).append(rest)
        self.assertIn(["aisp push ch89:allocates", "aisp push slow", "aisp push with memory of its own", "aisp mark queued", "aisp pop -", "aisp pop -", "aisp pop -"],
                      heard.values())


if __name__ == "__main__":
    unittest.main()
