# SPDX-License-Identifier: Apache-2.0
"""NVTX as a tool receives it: ranges of suite, pair, stages and variants, and the pair's own ranges and marks."""
import os
import unittest

from harness import EndToEnd

LISTENER = os.environ.get("AISP_NVTX_LISTENER", "")


@unittest.skipUnless(os.path.exists(LISTENER), "nvtx_listener is not built")
class Nvtx(EndToEnd):
    def listen(self, *flags):
        """Paths of ranges, as in "suite x/ch90:tokens/verify/slow", and of marks; one list for each process."""
        log = self.work / "nvtx.log"
        finished = self.run_pairs("ch90:tokens", flags=("--run-id", "heard", *flags),
                                  env={"NVTX_INJECTION64_PATH": LISTENER, "AISP_NVTX_LOG": str(log)})
        self.assert_code(finished, 0)
        opened, ranges, marks = {}, set(), set()
        for line in log.read_text().splitlines():
            process, domain, what, name = line.split(" ", 3)
            self.assertEqual(domain, "aisp")
            stack = opened.setdefault(process, [])
            if what == "push":
                stack.append(name)
                ranges.add("/".join(stack))
            elif what == "pop":
                stack.pop()
            else:
                marks.add("/".join([*stack, name]))
        self.assertEqual([stack for stack in opened.values() if stack], [], "what is opened is closed")
        self.log = log
        return ranges, marks

    def test_every_level_and_the_pairs_own(self):
        ranges, marks = self.listen("--profile", "minimal")
        self.assertIn("suite heard", ranges)
        for stage in ("verify", "warmup", "measurement", "reverify", "profiling"):
            for variant in ("slow", "doubled"):
                with self.subTest(stage=stage, variant=variant):
                    self.assertIn(f"ch90:tokens/{stage}/{variant}/generate", ranges)
                    self.assertIn(f"ch90:tokens/{stage}/{variant}/generate/token", marks)
                    self.assertIn(f"ch90:tokens/{stage}/{variant}/generate/generated", marks)
        for stage in ("setup", "teardown"):
            self.assertIn(f"ch90:tokens/{stage}", ranges)

    def test_in_one_process_they_nest_from_the_suite_on(self):
        ranges, _ = self.listen("--in-process")
        self.assertIn("suite heard/ch90:tokens/measurement/doubled/generate", ranges)


if __name__ == "__main__":
    unittest.main()
