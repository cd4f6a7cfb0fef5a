# SPDX-License-Identifier: Apache-2.0
"""--profile on the host: what a host pair says, where it is written, and that none of it is there unasked."""
import json
import unittest

from harness import EndToEnd, results_log, variant
from schemas import mistakes


class HostProfile(EndToEnd):
    def test_minimal_says_what_the_kernel_counted(self):
        finished = self.run_pairs("ch90:good", flags=("--profile", "minimal"))
        self.assert_code(finished, 0)
        line, note = finished.out.splitlines()[:2]
        self.assertIn("ch90:good", line)
        self.assertRegex(note, r"^  user CPU time [\d.]+ us -> [\d.]+ (us|ns|ms)")
        pair = finished.pair("ch90:good")
        self.assertEqual(mistakes(pair, "result"), [])
        self.assertTrue(pair["watchdog"]["profiling"]["finished"])
        self.assertEqual(pair["watchdog"]["profiling"]["limit_s"], 180)
        for each in pair["variants"]:
            self.assertGreater(each["profile"]["host"]["wall_ms"], 0)
            self.assertEqual(each["profile"]["kernels"], [])
        own = finished.folder / "ch90_good"
        tables = (own / "profiles" / "profile.md").read_text()
        self.assertIn("| doubled |", tables)
        self.assertIn("user CPU time", tables)
        self.assertIn("user CPU time", (own / "results" / "benchmark_test_results.md").read_text())

    def test_the_trace_has_ranges_marks_and_memory(self):
        finished = self.run_pairs("ch90:tokens", flags=("--profile", "minimal"))
        self.assert_code(finished, 0)
        for each in finished.pair("ch90:tokens")["variants"]:
            with self.subTest(each["name"]):
                self.assertEqual(each["profile"]["trace"], f"ch90_tokens/profiles/{each['name']}.trace.json")
                events = json.loads((finished.folder / each["profile"]["trace"]).read_text())["traceEvents"]
                slices = {event["name"]: event for event in events if event["ph"] == "X"}
                self.assertEqual(set(slices), {each["name"], "generate"})
                outer, inner = slices[each["name"]], slices["generate"]
                self.assertLessEqual(outer["ts"], inner["ts"])
                self.assertLessEqual(inner["ts"] + inner["dur"], outer["ts"] + outer["dur"])
                marks = [event["name"] for event in events if event["ph"] == "i"]
                self.assertEqual(marks, ["token"] * 4 + ["generated"])  # one for the requests of a step
                memory = [event for event in events if event["ph"] == "C"]
                self.assertGreaterEqual(len(memory), 2)
                self.assertTrue(all(event["args"]["bytes"] > 1 << 20 for event in memory), memory)

    def test_it_comes_behind_the_timed_samples_and_adds_none(self):
        flags = ("--fixed-iterations",)
        self.run_pairs("ch90:good", flags=(*flags, "--run-id", "plain"))
        self.run_pairs("ch90:good", flags=(*flags, "--profile", "minimal", "--run-id", "profiled"))
        before, after = (results_log(self.artifacts / name)[-1] for name in ("plain", "profiled"))
        for a, b in zip(before["variants"], after["variants"]):
            self.assertEqual(len(a["timing"]["raw_times_ms"]), len(b["timing"]["raw_times_ms"]))
        stages = after["watchdog"]
        ended = {name: stage["started_s"] + stage["elapsed_s"] for name, stage in stages.items()}
        for earlier in ("warmup", "measurement", "audit", "reverify"):
            self.assertLessEqual(ended[earlier], stages["profiling"]["started_s"] + 1e-6, earlier)

    def test_what_was_asked_for_and_is_not_there_is_one_line_for_all_pairs(self):
        finished = self.run_pairs("ch90:good", "ch90:equal", flags=("--energy",))
        self.assert_code(finished, 0)
        lines = [line for line in finished.err.splitlines() if "not available here" in line]
        self.assertEqual(len(lines), 1, finished.err)
        self.assertRegex(lines[0], r"no joules on the host: .* \(ch90:(good|equal) and 1 more\)$")
        finished = self.run_pairs("ch90:good", flags=("--run-id", "unasked"))
        self.assertNotIn("not available here", finished.err)

    def test_full_does_no_less(self):
        finished = self.run_pairs("ch90:good", flags=("--profile", "full"))
        self.assert_code(finished, 0)
        self.assertIn("profile", variant(finished.pair("ch90:good"), "doubled"))

    def test_nothing_unasked(self):
        for flags in ((), ("--profile", "none"), ("--no-profile",)):
            with self.subTest(flags):
                finished = self.run_pairs("ch90:good", flags=(*flags, "--run-id", "run" + str(len(flags))))
                self.assert_code(finished, 0)
                self.assertNotIn("GPU activity", finished.out)
                self.assertFalse(list(self.artifacts.rglob("profiles")))

    def test_a_failed_pair_is_not_profiled(self):
        finished = self.run_pairs("ch92:throw_binary", flags=("--profile", "minimal"))
        self.assert_code(finished, 1)
        self.assertNotIn("profiling", finished.pair("ch92:throw_binary")["watchdog"])

    def test_the_limit_follows_the_multiplier(self):
        finished = self.run_pairs("ch90:good", flags=("--profile", "minimal", "--timeout-multiplier", "2"))
        self.assertEqual(finished.pair("ch90:good")["watchdog"]["profiling"]["limit_s"], 360)


if __name__ == "__main__":
    unittest.main()
