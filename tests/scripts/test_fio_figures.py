# SPDX-License-Identifier: Apache-2.0
"""fio-figures with a made-up fio and a made-up aisp."""
import os
import pathlib
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/fio-figures"

# Every variant takes 10 ms, but io_uring_direct, which was skipped; something else failed.
AISP = """#!/usr/bin/env python3
import json, pathlib, sys
arguments = sys.argv[1:]
folder = pathlib.Path(arguments[arguments.index("--artifacts-dir") + 1]) / arguments[arguments.index("--run-id") + 1]
folder.mkdir(parents=True)
names = {"ch05:io_uring": ["pread_loop", "pread_direct", "thread_pool_pread"], "ch05:mmap": ["pread", "mapped"],
         "ch05:sharded_dataset": ["indexed_shard"], "ch05:storage_cpu": ["block_stream"]}
pairs = [{"target": target, "variants": [{"name": name, "timing": {"median_ms": 10.0}} for name in names[target]]} for target in names]
pairs[0]["variants"].append({"name": "io_uring_direct", "reason": "io_uring is refused"})
(folder / "benchmark_test_results.json").write_text(json.dumps({"pairs": pairs}))
sys.exit(1)
"""
FIO = """#!/bin/sh
case "$*" in *--ioengine=mmap*) echo "fio: no engine mmap" >&2; exit 1;; esac
echo '{"jobs": [{"read": {"iops": 400000.0}}]}'
"""


class FioFigures(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "bin").mkdir()
        (self.folder / "disk").mkdir()

    def program(self, name, text):
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    def run_script(self, *arguments, path=None):
        environment = {**os.environ, "PATH": path or f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        return subprocess.run([str(SCRIPT), "--folder", str(self.folder / "disk"), *arguments], capture_output=True, text=True, check=False,
                              env=environment)

    def test_rows_stand_side_by_side_and_nothing_is_left(self):
        self.program("fio", FIO)
        ended = self.run_script("--aisp", self.program("aisp", AISP), "--repeat", "1")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        # 2000 reads in 10 ms, against 400,000 a second.
        self.assertIn("| ch05:io_uring pread_loop | 4096 | 200,000/s, 819 MB/s | 400,000/s, 1,638 MB/s | 50 % |", ended.stdout)
        self.assertIn("| ch05:io_uring io_uring_direct | 4096 | io_uring is refused | 400,000/s, 1,638 MB/s |  |", ended.stdout)
        self.assertRegex(ended.stdout, r"ch05:mmap mapped \| 4096 \| 819,200/s, 3,355 MB/s \| fio: .*no engine mmap")
        self.assertEqual(list((self.folder / "disk").iterdir()), [])

    def test_rows_of_one_pair(self):
        self.program("fio", FIO)
        ended = self.run_script("--aisp", self.program("aisp", AISP), "--repeat", "1", "-t", "ch05:storage_cpu")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(["ch05:storage_cpu block_stream"], [line.split(" | ")[0].strip("| ") for line in ended.stdout.splitlines()[2:]])

    def test_what_is_missing_is_told_in_one_line(self):
        aisp = self.program("aisp", AISP)
        python = self.folder / "python"
        python.mkdir()
        (python / "python3").symlink_to("/usr/bin/python3")
        (python / "env").symlink_to("/usr/bin/env")
        for arguments, path, missing in ((("--aisp", aisp), str(python), "no fio; install it"), (("--aisp", "/nowhere/aisp"), None, "no /nowhere/aisp")):
            if path is None:
                self.program("fio", FIO)
            ended = self.run_script(*arguments, path=path)
            self.assertEqual(ended.returncode, 4)
            self.assertRegex(ended.stderr, rf"\Afio-figures: .*{missing}.*\n\Z")

    def test_usage(self):
        self.assertEqual(self.run_script("--repeat", "0").returncode, 2)
        self.assertEqual(self.run_script("--targets", "ch05:tape").returncode, 2)


if __name__ == "__main__":
    unittest.main()
