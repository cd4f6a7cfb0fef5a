# SPDX-License-Identifier: Apache-2.0
"""aisp peak as a user meets it."""
import json
import os
import threading
import unittest

import schemas
from harness import EndToEnd

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


class Peak(EndToEnd):
    def peak(self, *arguments, **keywords):
        keywords.setdefault("env", NO_GPU)
        return self.call("peak", "--quick", *arguments, **keywords)

    def test_host_is_measured_without_a_gpu_and_then_known(self):
        first = self.peak()
        self.assert_code(first, 0)
        self.assertRegex(first.out, r"(?m)^GPU: not measured: \S")
        self.assertRegex(first.out, r"(?m)^host memory copy +[\d.]+ [MGT]B/s")
        self.assertIn("measuring the ceilings of the host", first.err)
        second = self.peak()
        self.assertIn("from the cache", second.out)
        self.assertEqual(second.err, "")
        self.assertIn("measuring", self.peak("--refresh").err)

    def test_values_are_plausible(self):
        report = json.loads(self.peak("--json").out)
        self.assertEqual(report["gpus"], [])
        self.assertNotEqual(report["no_gpu"], "")
        for figure in report["host"]["record"]["figures"]:
            self.assertGreater(figure["value"], 1e8, figure)
            self.assertLess(figure["value"], 2e13, figure)

    def test_levels_of_the_host(self):
        finished = self.call("peak", "--levels", "--svg", "stairs.svg", env=NO_GPU)
        self.assert_code(finished, 0)
        self.assertRegex(finished.out, r"(?m)^level +holds +stated +latency$")
        self.assertIn("<polyline", (self.work / "stairs.svg").read_text())
        again = self.call("peak", "--levels", "--json", env=NO_GPU)
        self.assertEqual(again.err, "", "it was known")
        report = json.loads(again.out)
        self.assertEqual(schemas.mistakes(report, "levels"), [])
        levels = report["host"]["levels"]
        self.assertEqual(levels["lines"], sorted(levels["lines"], key=lambda point: point["bytes"]))
        self.assertGreater(levels["lines"][-1]["latency_ns"], 3 * levels["lines"][0]["latency_ns"], "memory is not L1")
        self.assertGreaterEqual(len(levels["levels"]), 2)

    def test_a_picture_goes_where_it_is_sent_and_replaces_nothing_there(self):
        self.assert_code(self.call("peak", "--levels", env=NO_GPU), 0)  # known from now on
        pipe, link = self.work / "pipe", self.work / "link"
        os.mkfifo(pipe)
        link.symlink_to("drawn.svg")
        read = []
        reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
        reader.start()
        for place in ("pipe", "link"):
            self.assert_code(self.call("peak", "--levels", "--svg", place, env=NO_GPU), 0)
        reader.join(10)
        self.assertTrue(read and "<polyline" in read[0], read)
        self.assertTrue(pipe.is_fifo() and link.is_symlink())
        self.assertIn("<polyline", (self.work / "drawn.svg").read_text())
        out = self.call("peak", "--levels", "--svg", "-", env=NO_GPU).out
        self.assertTrue(out.startswith("<svg") and out.rstrip().endswith("</svg>"), out[:200])
        self.assertFalse((self.work / "-").exists())
        both = self.call("peak", "--levels", "--json", "--svg", "-", env=NO_GPU)
        self.assert_code(both, 2)
        self.assert_one_error_line(both, "--json", "--svg")

    def test_a_picture_that_cannot_be_written_is_told_before_a_minute_of_measuring(self):
        finished = self.call("peak", "--levels", "--svg", "/proc/stairs.svg", env=NO_GPU)
        self.assert_code(finished, 4)
        self.assert_one_error_line(finished, "/proc/stairs.svg")
        self.assertNotIn("measuring", finished.err)

    def test_levels_are_not_quick(self):
        self.assert_code(self.peak("--levels"), 2)
        self.assert_code(self.call("peak", "--svg", "a.svg", env=NO_GPU), 2)

    def test_links_take_two_gpus(self):
        finished = self.call("peak", "--links", env=NO_GPU)
        self.assert_code(finished, 4)
        self.assert_one_error_line(finished, "--links", "two GPUs")
        (self.work / "other.json").write_text('{"schema_version": 1}')
        peers = self.call("peak", "--links", "--peers", "other.json", env=NO_GPU)
        self.assert_code(peers, 2)
        self.assert_one_error_line(peers, "other.json", "aisp peak --links --json")
        missing = self.call("peak", "--links", "--peers", "missing.json", env=NO_GPU)
        self.assert_code(missing, 2)
        self.assertEqual(missing.err, "aisp: error: cannot read missing.json: No such file or directory\n")
        both = self.call("peak", "--links", "--json", "--csv", "-", env=NO_GPU)
        self.assert_code(both, 2)
        self.assert_one_error_line(both, "--json", "--csv")
        self.assert_code(self.call("peak", "--links", "--csv", "made/links.csv", env=NO_GPU), 4)
        self.assertFalse((self.work / "made").exists(), "no folder is made for files that are not written")
        for flags in (("--links", "--levels"), ("--csv", "a.csv"), ("--peers", "a.json")):
            self.assert_code(self.call("peak", *flags, env=NO_GPU), 2)

    def test_broken_cache(self):
        self.peak()
        (file,) = (self.work / "cache/aisp/peak").iterdir()
        file.write_text("{")
        again = self.peak()
        self.assert_code(again, 0)
        self.assertEqual(again.err.count(str(file)), 1)
        self.assertNotIn("from the cache", again.out)
        self.assertIn("from the cache", self.peak().out)

    def test_cache_that_cannot_be_written(self):
        finished = self.peak(env=NO_GPU | {"XDG_CACHE_HOME": "/proc/nowhere"})
        self.assert_code(finished, 0)
        self.assertIn("are not kept", finished.err)
        self.assertIn("host memory copy", finished.out)

    def test_gpu_that_is_not_there(self):
        finished = self.peak("--gpu", "7")
        self.assertIn(finished.code, (2, 4))
        self.assert_one_error_line(finished, "--gpu 7")

    def test_clean_removes_it(self):
        self.peak()
        self.assert_code(self.call("clean"), 0)
        self.assertFalse((self.work / "cache/aisp").exists())

    def test_dry_run_measures_nothing(self):
        finished = self.call("run", "-t", "ch90:good", "--dry-run", env=NO_GPU)
        self.assert_code(finished, 0)
        self.assertNotIn("measuring", finished.err)
        self.assertFalse((self.work / "cache").exists())


if __name__ == "__main__":
    unittest.main()
