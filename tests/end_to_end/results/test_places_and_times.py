# SPDX-License-Identifier: Apache-2.0
"""Runs that were copied, made in containers, or in places with odd names: which is the latest, which belong together."""
import datetime
import json
import os
import random
import shutil
import subprocess
import unittest

from harness import FIXTURES, EndToEnd


class PlacesAndTimes(EndToEnd):
    def copies(self, count, **manifest_of):
        """Copies of one run, a day apart; `manifest_of`: what each copy's manifest says, by a function of its number."""
        self.run_pairs("ch90:good", flags=("--run-id", "first"))
        original = self.work / "original"
        (self.artifacts / "first").rename(original)
        for night in range(count):
            started = (datetime.datetime(2026, 9, 1, 2) + datetime.timedelta(days=night)).strftime("%Y-%m-%dT%H:%M:%SZ")
            folder = self.artifacts / f"n{night:02}"
            shutil.copytree(original, folder)
            manifest = json.loads((folder / "manifest.json").read_text())
            manifest.update(run_id=folder.name, started_utc=started, **{key: of(night) for key, of in manifest_of.items()})
            (folder / "manifest.json").write_text(json.dumps(manifest))
            lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
            for line in lines:
                line["started_utc"] = started
                if "run_id" in line:
                    line["run_id"] = folder.name
                for variant in line.get("variants", []):
                    if variant["role"] == "optimized" and variant.get("speedup"):
                        factor = (1 if night < 15 else 0.8) * random.Random(night).gauss(1, 0.01)
                        for key in ("value", "low", "high"):
                            variant["speedup"][key] *= factor
            (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def test_latest_is_the_run_that_began_last(self):
        self.copies(3)
        for number, name in enumerate(("n01", "n02", "n00")):  # as after cp -r or unzip
            os.utime(self.artifacts / name / "results.jsonl", (2e9 + number, 2e9 + number))
        self.assertIn("n02", self.call("report", "latest", "--html", "-").out.split("</title>")[0])

    def test_nights_in_containers_are_one_series(self):
        self.copies(30, hostname="{:012x}".format, container=lambda night: "docker")
        finished = self.call("analyze", "--history")
        self.assertRegex(finished.out, r"ch90:good \w+, speedup, at n1[456] ")
        self.assertNotIn("warning", finished.err)

    def speed_up(self, run, factor):
        """All optimized variants of the run: `factor` times as fast as its baseline, to 2 %."""
        file = self.artifacts / run / "results.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for variant in (variant for line in lines for variant in line.get("variants", []) if variant["role"] == "optimized"):
            variant["speedup"].update(value=factor, low=factor * 0.98, high=factor * 1.02)
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def test_one_far_run_does_not_blind_an_expectation(self):
        self.copies(9)
        names = [f"n{night:02}" for night in range(9)]
        for night, name in enumerate(names):
            self.speed_up(name, (4 + 0.04 * (night % 3), 8, 3.2)[max(0, night - 6)])
        recorded = ("--expectations-dir", "recorded")
        self.assertIn("wide, so a loss below", self.call("analyze", names[0], "--update-expectations", "--expectations-dir", "one").err)
        finished = self.call("analyze", *names[:7], "--update-expectations", *recorded)
        self.assert_code(finished, 0)
        self.assertNotIn("warning", finished.err, "the interval of the first run alone is not what is expected now")
        self.assert_code(self.call("analyze", names[8], *recorded), 3)
        finished = self.call("analyze", names[7], "--update-expectations", *recorded)
        self.assertRegex(finished.err, "warning: ch90:good .* n07 measured 8x, where the 7 before it have 4.0[48]x")
        self.assert_code(self.call("analyze", names[8], *recorded), 3)

    def test_hosts_that_are_all_others_are_told(self):
        self.copies(12, hostname="{:012x}".format, container=lambda night: "")
        finished = self.call("analyze", "--history")
        self.assertIn("no series has two of the 12 runs", finished.err)

    def test_a_place_that_is_no_utf8(self):
        odd = os.fsdecode(os.fsencode(str(self.work)) + b"/here\xe9")
        os.mkdir(odd)
        for cwd, more in ((odd, ()), (str(self.work), ("--artifacts-dir", os.fsdecode(b"d\xe9")))):
            done = subprocess.run([FIXTURES, "run", "-t", "ch90:good", "-q", *more], cwd=cwd, env=self.environment(), capture_output=True, text=True,
                                  errors="replace")
            self.assertEqual(done.returncode, 4, done.stderr)
            self.assertIn("is no text in UTF-8", done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1)

    def test_without_proc(self):
        lone = ["unshare", "-m", "sh", "-c"]
        if subprocess.run([*lone, "umount -l /proc"], capture_output=True).returncode != 0:
            self.skipTest("needs a mount namespace of its own")
        for command in ("run -t ch90:good", "doctor"):
            done = subprocess.run([*lone, f"umount -l /proc; exec {FIXTURES} {command}"], cwd=self.work, env=self.environment(), capture_output=True,
                                  text=True)
            self.assertEqual(done.returncode, 4, done.stdout + done.stderr)
            self.assertRegex(done.stdout + done.stderr, "/proc +(is )?not mounted; aisp needs it to start its workers")
            self.assertNotIn("no NVIDIA driver", done.stdout)
            self.assertNotIn("internal", done.stderr)


if __name__ == "__main__":
    unittest.main()
