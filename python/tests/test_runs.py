# SPDX-License-Identifier: Apache-2.0
"""aisp.load, over made-up runs. Needs pandas; tests/end_to_end/installed/test_packages.py runs it with the installed wheel."""
import json
import pathlib
import tempfile
import unittest

import aisp
from aisp.results import Error

HEADER = {"kind": "aisp results log", "command": "run", "run_id": "first", "schema_version": 1, "started_utc": "2026-11-22T10:00:00Z"}


def result(target="ch01:sum", median=2.0, case=""):
    chapter, name = target.split(":")
    timing = {"median_ms": median, "raw_times_ms": [median, median + 1], "rounds": [0, 1]}
    speedup = {"value": 4 / median, "low": 1.9, "high": 2.1, "verdict": "faster"}
    return {"target": target, "chapter": chapter, "name": name, "case": case, "device": "gpu", "status": "passed", "best": "fast",
            "gpus": ["GPU-1"], "errors": [], "ceilings": {"memory_bytes_s": 1.0},
            "variants": [{"name": "slow", "role": "baseline", "status": "passed", "timing": {**timing, "median_ms": 4.0}},
                         {"name": "fast", "role": "optimized", "status": "passed", "timing": timing, "speedup": speedup},
                         {"name": "other", "role": "peer", "status": "skipped", "timing": None}]}


class Load(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.artifacts = pathlib.Path(folder.name)

    def write(self, run_id="first", lines=None, started="2026-11-22T10:00:00Z", ending="\n"):
        folder = self.artifacts / run_id
        folder.mkdir()
        header = {**HEADER, "run_id": run_id, "started_utc": started}
        lines = [json.dumps(line) for line in [header, *(lines or [result()])]]
        (folder / "results.jsonl").write_text("\n".join(lines) + ending)
        (folder / "manifest.json").write_text(json.dumps(
            {"run_id": run_id, "commit": "abc", "cpu": "A CPU", "gpus": [{"uuid": "GPU-1", "name": "NVIDIA H200"}]}))
        return folder

    def load(self, *runs):
        return aisp.load(*runs, artifacts=self.artifacts)

    def test_frames_have_a_row_a_pair_a_variant_and_a_sample(self):
        run = self.load(self.write())
        self.assertEqual((len(run.pairs), len(run.variants), len(run.samples)), (1, 3, 4))
        fast = run.variants.set_index("variant").loc["fast"]
        self.assertEqual((fast["speedup.value"], fast["timing.median_ms"], fast["is_best"]), (2.0, 2.0, True))
        self.assertEqual((fast["gpu"], fast["cpu"], fast["commit"], fast["run_id"]), ("NVIDIA H200", "A CPU", "abc", "first"))
        self.assertEqual(list(run.samples[run.samples.variant == "fast"].milliseconds), [2.0, 3.0])
        self.assertEqual(run.pairs.iloc[0]["ceilings.memory_bytes_s"], 1.0)
        self.assertEqual(run.manifests["first"]["cpu"], "A CPU")

    def test_runs_are_found_by_name_and_latest_by_when_they_started(self):
        self.write("z_early", started="2026-11-22T10:00:00Z")
        self.write("a_late", started="2026-11-22T11:00:00Z")
        self.assertEqual(list(self.load("latest").manifests), ["a_late"])
        self.assertEqual(list(self.load("z_early").manifests), ["z_early"])

    def test_several_runs_are_one_set_of_frames(self):
        self.write("a")
        self.write("b", [result(median=1.0)])
        run = self.load("a", "b")
        medians = run.variants[run.variants.variant == "fast"].set_index("run_id")["timing.median_ms"]
        self.assertEqual(dict(medians), {"a": 2.0, "b": 1.0})
        with self.assertRaisesRegex(Error, "two runs are called a"):
            self.load("a", "a")

    def test_of_a_resumed_run_the_later_result_counts_and_half_a_line_is_none(self):
        folder = self.write("resumed", [result(median=2.0), result(median=3.0), result(case="big")])
        with (folder / "results.jsonl").open("a") as log:
            log.write('{"target": "ch01:cut')
        run = self.load("resumed")
        self.assertEqual(len(run.pairs), 2)
        self.assertEqual(list(run.variants[run.variants.variant == "fast"]["timing.median_ms"]), [3.0, 2.0])

    def test_what_is_wrong_is_said(self):
        with self.assertRaisesRegex(Error, "no run 'nothing'"):
            self.load("nothing")
        with self.assertRaisesRegex(Error, "no run below"):
            self.load("latest")
        with self.assertRaisesRegex(Error, "needs a run"):
            self.load()
        for name, text, words in (("other", "[]\n", "no results log"), ("empty", "", "no results log"),
                                  ("newer", json.dumps({**HEADER, "schema_version": 2}) + "\n", "schema_version 2"),
                                  ("broken", json.dumps(HEADER) + "\n{\n", "results.jsonl:2 is not JSON")):
            folder = self.write(name)
            (folder / "results.jsonl").write_text(text)
            with self.subTest(name), self.assertRaisesRegex(Error, words):
                self.load(folder)


if __name__ == "__main__":
    unittest.main()
