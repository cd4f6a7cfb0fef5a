# SPDX-License-Identifier: Apache-2.0
"""sanitize.sh with a made-up aisp and a made-up compute-sanitizer."""
import json
import os
import re
import subprocess
import unittest

from machine import SOURCE, Machine

EXECUTABLE = os.environ.get("AISP", str(SOURCE / "build/ci/aisp"))

AISP = """#!/usr/bin/env -S python3 -IS
import json, sys
if "--list" in sys.argv:
    print(json.dumps([{"target": t, "device": d} for t, d in PAIRS]))
"""

# The tool's output and exit, by pair and tool; "sleep" does not end by itself.
SANITIZER = """#!/usr/bin/env -S python3 -IS
import json, os, sys, time
arguments = sys.argv[1:]
tool = arguments[arguments.index("--tool") + 1]
target = arguments[arguments.index("--targets") + 1]
with open(LOG, "a") as log:
    log.write(json.dumps({"tool": tool, "target": target, "arguments": arguments, "checker": os.environ.get("AISP_MEMORY_CHECKER"),
                          "locks": os.environ.get("AISP_LOCK_DIRECTORY"), "without": os.environ.get("AISP_WITHOUT_LIBRARIES")}) + "\\n")
text, status = ANSWERS.get(target + " " + tool, ANSWERS.get(target, ["passed", 0]))
if text == "sleep":
    time.sleep(30)
print("========= COMPUTE-SANITIZER")
print(text.replace("TARGET", target))
sys.exit(status)
"""

CLEAN = "TARGET    passed  2 variants verified\n========= ERROR SUMMARY: 0 errors"
RACE_CLEAN = "TARGET    passed  2 variants verified\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"


def invalid(kernel, count=1):
    lines = ["========= Invalid __global__ write of size 4 bytes", f"=========     at {kernel}(float *)+0x50",
             "=========     by thread (0,0,0) in block (0,0,0)"] * count
    return "\n".join([*lines, "TARGET    passed  2 variants verified", f"========= ERROR SUMMARY: {count} errors"])


def race(kernel):
    return "\n".join([f"========= Error: Race reported between Write access at {kernel}(float *)+0x150",
                      f"=========     and Read access at {kernel}(float *)+0x1f0 [1020 hazards]", "=========",
                      "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)"])


class Sanitize(Machine):
    def sanitize(self, *flags, pairs=("ch07:a",), answers=None):
        self.log = self.work / "jobs.jsonl"
        listed = [(pair, "gpu") if isinstance(pair, str) else pair for pair in pairs]
        self.tool("aisp", AISP.replace("PAIRS", repr(listed)))
        known = {f"{pair} racecheck": [RACE_CLEAN, 0] for pair, _ in listed} | {pair: [CLEAN, 0] for pair, _ in listed} | (answers or {})
        self.tool("compute-sanitizer", SANITIZER.replace("LOG", repr(str(self.log))).replace("ANSWERS", repr(known)))
        return self.run_script("sanitize.sh", "--aisp", str(self.bin / "aisp"), "--logs", str(self.work / "logs"), *flags)

    def jobs(self):
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def cells(self, result, target):
        line = next(line for line in result.stdout.splitlines() if line.startswith(target))
        return [cell.strip() for cell in line[32:].split("  ") if cell.strip()]

    def test_clean_pairs(self):
        result = self.sanitize(pairs=("ch07:a", "ch11:b", ("ch03:on_the_host", "host")))
        self.assert_status(result, 0)
        self.assertEqual(self.cells(result, "ch07:a"), ["clean"] * 4)
        self.assertNotIn("on_the_host", result.stdout)
        self.assertIn("8 jobs in ", result.stdout)
        self.assertEqual(sorted((job["target"], job["tool"]) for job in self.jobs()),
                         sorted((pair, tool) for pair in ("ch07:a", "ch11:b") for tool in ("memcheck", "racecheck", "synccheck", "initcheck")))
        self.assertEqual({job["checker"] for job in self.jobs()}, {"1"})
        self.assertEqual(len({job["locks"] for job in self.jobs()}), 8, "jobs would wait for one another")
        self.assertIn("0 errors", (self.work / "logs/ch07_a.memcheck.log").read_text())

    def test_memcheck_pads_allocations(self):
        self.assert_status(self.sanitize(), 0)
        padded = {job["tool"]: "--padding" in job["arguments"] for job in self.jobs()}
        self.assertEqual(padded, {"memcheck": True, "racecheck": False, "synccheck": False, "initcheck": False})

    def test_large_pairs_have_small_sizes(self):
        self.assert_status(self.sanitize(pairs=("ch09:tall_skinny_gram", "ch07:a")), 0)
        sizes = {job["target"]: job["arguments"][job["arguments"].index("--size") + 1] if "--size" in job["arguments"] else None for job in self.jobs()}
        self.assertEqual(sizes, {"ch09:tall_skinny_gram": "rows=3000", "ch07:a": None})

    def test_the_small_sizes_are_sizes_of_their_pairs(self):
        named = re.findall(r"^  \[(ch\d\d:\w+)\]='(\w+=[\w=,]+)'", (SOURCE / "scripts/sanitize.sh").read_text(), re.M)
        self.assertGreater(len(named), 5)
        for target, size in named:
            checked = subprocess.run([EXECUTABLE, "run", "--dry-run", "--targets", target, "--size", size], capture_output=True, text=True)
            self.assertEqual(checked.returncode, 0, checked.stderr)

    def test_what_a_tool_cannot_see_is_left_out_and_said(self):
        result = self.sanitize(pairs=("ch01:preallocated_buffers",))
        self.assert_status(result, 0)
        self.assertIn("ch01:preallocated_buffers initcheck: without bias_gelu_kernel, which reads what cuBLASLt stored by TMA", result.stdout)
        excluded = {job["tool"] for job in self.jobs() if "kernel_substring=bias_gelu_kernel" in job["arguments"]}
        self.assertEqual(excluded, {"initcheck"})

    def test_a_library_that_dies_under_a_tool_is_done_without_and_said(self):
        result = self.sanitize(pairs=("ch18:tree_attention",))
        self.assert_status(result, 0)
        self.assertIn("ch18:tree_attention racecheck: without variants of cuDNN", result.stdout)
        self.assertEqual({job["tool"] for job in self.jobs() if job["without"]}, {"racecheck"})

    def test_findings_are_counted_and_end_with_1(self):
        result = self.sanitize(pairs=("ch07:a", "ch11:b"), answers={"ch11:b memcheck": [invalid("our_kernel", 3), 9]})
        self.assert_status(result, 1)
        self.assertEqual(self.cells(result, "ch11:b"), ["3 findings", "clean", "clean", "clean"])
        self.assertIn("ch11_b.memcheck.log", result.stdout)

    def test_hazards_of_library_kernels_are_told_apart(self):
        result = self.sanitize(answers={"ch07:a racecheck": [race("_ZN7cutlass7Kernel2I"), 9]})
        self.assert_status(result, 0)
        self.assertEqual(self.cells(result, "ch07:a")[1], "1 library")
        result = self.sanitize(answers={"ch07:a racecheck": [race("our_kernel"), 9]})
        self.assert_status(result, 1)

    def test_a_finding_of_an_unknown_kind_counts(self):
        text = "========= Something new happened\nTARGET    passed  2 variants verified\n========= ERROR SUMMARY: 2 errors"
        result = self.sanitize(answers={"ch07:a synccheck": [text, 9]})
        self.assert_status(result, 1)
        self.assertEqual(self.cells(result, "ch07:a")[2], "2 findings")

    def test_library_kernels_are_left_out_only_where_the_tool_does_not_see_their_stores(self):
        self.sanitize()
        left_out = {job["tool"]: [word for word in job["arguments"] if word.startswith("kernel_substring=")] for job in self.jobs()}
        self.assertEqual(left_out, {"memcheck": [], "racecheck": [], "synccheck": [],
                                    "initcheck": ["kernel_substring=splitKreduce"]})

    def test_an_internal_error_of_the_tool_is_no_finding(self):
        text = ("========= Internal Sanitizer Error: The Sanitizer failed to handle a hardware exception.\n"
                "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)")
        result = self.sanitize(answers={"ch07:a racecheck": [text, 9]})
        self.assert_status(result, 4)
        self.assertEqual(self.cells(result, "ch07:a")[1], "tool error")
        self.assertIn("Internal Sanitizer Error", result.stdout)

    def test_a_pair_that_died_under_the_tool_is_not_clean(self):
        died = ("========= Error: process didn't terminate successfully\n========= Target application returned an error\n"
                "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)")
        of_library = race("_ZN7cutlass7Kernel2I") + "\n========= Target application returned an error"
        for text in (died, of_library):
            result = self.sanitize(answers={"ch07:a racecheck": [text, 9]})
            self.assert_status(result, 4)
            self.assertEqual(self.cells(result, "ch07:a")[1], "tool error")
            self.assertIn("ch07:a racecheck: tool error: ========= ", result.stdout)

    def test_an_interrupted_job_begins_anew(self):
        artifacts = self.work / "logs/artifacts/ch07_a_memcheck"
        artifacts.mkdir(parents=True)
        self.assert_status(self.sanitize("--resume", str(self.work / "logs")), 0)
        self.assertFalse(artifacts.exists(), "aisp takes no run's folder that exists")

    def test_a_pair_that_cannot_run_is_skipped_with_its_reason(self):
        text = "TARGET    skipped  needs 2 GPUs, found 1\n========= ERROR SUMMARY: 0 errors"
        result = self.sanitize("--tools", "memcheck", answers={"ch07:a": [text, 0]})
        self.assert_status(result, 0)
        self.assertEqual(self.cells(result, "ch07:a"), ["skipped"])
        self.assertIn("needs 2 GPUs, found 1", result.stdout)

    def test_a_tool_that_fails_is_neither_clean_nor_a_finding(self):
        result = self.sanitize("--tools", "memcheck", answers={"ch07:a": ["========= Internal Sanitizer Error: no memory", 255]})
        self.assert_status(result, 4)
        self.assertEqual(self.cells(result, "ch07:a"), ["tool error"])
        self.assertIn("Internal Sanitizer Error: no memory", result.stdout)

    def test_a_pair_that_is_wrong_under_the_tool_is_no_success(self):
        text = "TARGET    failed  tiled: 3 elements are wrong\n========= ERROR SUMMARY: 0 errors"
        result = self.sanitize("--tools", "memcheck", answers={"ch07:a": [text, 1]})
        self.assert_status(result, 4)
        self.assertIn("3 elements are wrong", result.stdout)

    def test_the_limit_stops_a_job(self):
        result = self.sanitize("--tools", "memcheck", "--limit", "1", pairs=("ch07:a", "ch07:b"), answers={"ch07:a": ["sleep", 0]})
        self.assert_status(result, 4)
        self.assertEqual(self.cells(result, "ch07:a"), ["over 1 s"])
        self.assertEqual(self.cells(result, "ch07:b"), ["clean"])

    def test_an_interrupted_run_goes_on_where_it_was(self):
        self.sanitize(pairs=("ch07:a", "ch11:b"), answers={"ch07:a racecheck": [race("our_kernel"), 9]})
        (self.work / "logs/ch11_b.memcheck.log").write_text("========= COMPUTE-SANITIZER\n")
        (self.work / "logs/ch11_b.synccheck.log").unlink()
        self.log.unlink()
        result = self.sanitize("--resume", str(self.work / "logs"), pairs=("ch07:a", "ch11:b"))
        self.assertEqual(sorted(f"{job['target']} {job['tool']}" for job in self.jobs()), ["ch11:b memcheck", "ch11:b synccheck"])
        self.assertEqual(self.cells(result, "ch11:b"), ["clean"] * 4)
        self.assertEqual(self.cells(result, "ch07:a")[1], "1 finding", "what was found before must not be lost")
        self.assert_status(result, 1)

    def test_findings_outrank_tool_errors(self):
        result = self.sanitize("--tools", "memcheck", pairs=("ch07:a", "ch07:b"),
                               answers={"ch07:a": ["nothing", 255], "ch07:b": [invalid("our_kernel"), 9]})
        self.assert_status(result, 1)

    def test_what_it_refuses(self):
        for flags, status, words in (((("--tools", "memchek")), 2, "memchek"), (("--jobs", "0"), 2, "--jobs"), (("--scale", "2"), 2, "--scale"),
                                     (("--limit", "x"), 2, "--limit"), (("--frobnicate",), 2, "--frobnicate"), (("--targets",), 2, "--targets"),
                                     (("--sanitizer", "/nowhere"), 4, "/nowhere"), (("--resume", "/nowhere"), 2, "/nowhere")):
            with self.subTest(flags):
                self.assert_refused(self.sanitize(*flags), status, words)
        self.assert_refused(self.run_script("sanitize.sh", "--aisp", "/nowhere"), 4, "/nowhere")
        self.assert_refused(self.sanitize(pairs=(("ch03:a", "host"),)), 5, "no GPU pair")

    def test_help(self):
        result = self.run_script("sanitize.sh", "--help")
        self.assert_status(result, 0)
        for word in ("memcheck", "--limit", "Exit status"):
            self.assertIn(word, result.stdout)


if __name__ == "__main__":
    unittest.main()
