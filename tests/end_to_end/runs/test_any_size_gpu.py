# SPDX-License-Identifier: Apache-2.0
"""Every size that a shipped pair declares, also those that nobody has chosen: right, or refused with the reason."""
import concurrent.futures
import json
import unittest

from harness import AISP, EndToEnd, everything_said

AT_ONCE = 6  # nothing is timed


def odd(size):
    """An odd number of the size's multiples, in the middle of its range, of what the pair is timed with at most."""
    middle = (size["least"] + min(size["most"], max(size["full"], size["least"]))) // 2 // size["multiple"]
    return max(size["least"], (middle - 1 + middle % 2) * size["multiple"])


class AnySize(EndToEnd):
    def setUp(self):
        super().setUp()
        if not json.loads(self.call("doctor", "--json", program=AISP).out)["machine"]["gpus"]:
            self.skipTest("no GPU")
        self.sized = [target for target in json.loads(self.call("list-targets", "--json", program=AISP).out) if target["sizes"]]

    def verified(self, target, name, value):
        place = self.work / f"{target.replace(':', '_')}-{name}-{value}"
        finished = self.call("verify", "--targets", target, "--size", f"{name}={value}", "--json", "-", "--artifacts-dir", str(place),
                             program=AISP, timeout=600, env={"AISP_LOCK_DIRECTORY": str(place / "locks")})
        return json.loads(finished.out)["pairs"][0]

    def test_the_least_and_an_odd_one(self):
        asked = [(target["target"], size["name"], value) for target in self.sized for size in target["sizes"]
                 for value in sorted({size["least"], odd(size)})]
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            for (target, name, value), answer in [(each, pool.submit(self.verified, *each)) for each in asked]:
                with self.subTest(target=target, size=name, value=value):
                    pair = answer.result()
                    self.assertIn(pair["status"], ("passed", "skipped"), everything_said(pair))
                    if pair["status"] == "skipped":
                        self.assertTrue(everything_said(pair).strip(), "skipped without a reason")


if __name__ == "__main__":
    unittest.main()
