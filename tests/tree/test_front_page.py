# SPDX-License-Identifier: Apache-2.0
"""What README.md says first: how many pairs there are, what a run prints, what a pair looks like, what can be relied on."""
import json
import os
import re
import shutil
import tempfile
import unittest
from pathlib import Path

from test_documents import commands, pairs
from tree import FENCE, NVCC, SOURCE, run

AISP = os.environ.get("AISP", "")

# The hardware of a sample of aisp's output, which follows.
SAMPLE = re.compile(r"^<!-- sample: (\w+) -->\n```console\n(.*?)^```$", re.M | re.S)
SAMPLE_LINE = re.compile(r"^(ch\d\d:\w+) +(\w+) +([\d.]+)x \[.*\] +[\d.]+ [mu]s -> [\d.]+ [mu]s ")
SAMPLE_WIDTH = 92

# How many pairs each chapter has.
PAIRS = {f"ch{chapter:02d}": count for chapter, count in
         enumerate((21, 6, 11, 7, 7, 14, 20, 13, 17, 17, 11, 14, 23, 5, 10, 8, 13, 18, 15, 14), start=1)}


def samples(text):
    """(hardware, target, variant, speedup) of each line of output in a marked sample."""
    return [(hardware, line.group(1), line.group(2), float(line.group(3))) for hardware, body in SAMPLE.findall(text)
            for line in map(SAMPLE_LINE.match, body.splitlines()) if line]


class FrontPage(unittest.TestCase):
    def test_samples_fit_a_page(self):
        for _, body in SAMPLE.findall((SOURCE / "README.md").read_text()):
            self.assertEqual([line for line in body.splitlines() if len(line) > SAMPLE_WIDTH], [])

    @unittest.skipUnless(AISP and Path(AISP).exists(), "no executable: set AISP")
    def test_samples_are_what_was_recorded(self):
        shown = samples((SOURCE / "README.md").read_text())
        self.assertGreater(len(shown), 3)
        for hardware, target, variant, speedup in shown:
            (pair,) = json.loads(run(AISP, "explain", target, "--json", cwd=SOURCE).stdout)
            lesson = next(each["name"] for each in pair["variants"] if each["is_lesson"])
            self.assertEqual(variant, lesson, f"{target}: a line is about the lesson")
            recorded = [e for e in pair["expectations"] if (e["hardware"], e["variant"]) == (hardware, variant)]
            self.assertEqual(len(recorded), 1, f"{target} {variant} on {hardware}")
            self.assertLess(recorded[0]["speedup_low"] * 0.99, speedup, target)
            self.assertGreater(recorded[0]["speedup_high"] * 1.01, speedup, target)

    @unittest.skipUnless(AISP and Path(AISP).exists(), "no executable: set AISP")
    def test_its_run_makes_a_report(self):
        done = run(AISP, "report", "docs/example-run", "--html", "-", cwd=SOURCE)
        self.assertEqual(done.returncode, 0, done.stderr)
        for words in ("ch09:fused_mlp", "NVIDIA H100 80GB HBM3"):
            self.assertIn(words, done.stdout)

    def test_its_pictures_are_small(self):
        self.assertLess(sum((SOURCE / "docs" / name).stat().st_size for name in ("report.webp", "terminal.svg")), 200_000)

    def test_the_pairs_are_counted(self):
        found = {folder.name: len(names) for folder, names in pairs(SOURCE).items()}
        self.assertEqual(found, PAIRS)
        text = re.sub(r"\s+", " ", (SOURCE / "README.md").read_text())
        self.assertIn(f"{sum(PAIRS.values())} pairs in {len(PAIRS)} chapters", text)

    def test_what_gpus_lack_names_the_chapters(self):
        readme = (SOURCE / "README.md").read_text()
        for row, limit, lacks in (("A100, A30", "min_sm", lambda sm: sm > 80), ("B200", "max_sm", lambda sm: sm < 100)):
            chapters = set()
            for page in (SOURCE / "chapters").glob("ch??/*.cu"):
                needs = re.search(rf"^    \.needs = \{{[^;]*?\.{limit} = (\d+)", page.read_text(), re.M)
                if needs and lacks(int(needs[1])):
                    chapters.add(int(page.parent.name[2:]))
            told = re.search(rf"^\| {row} \|.*\(pairs of chapters ([\d, and]+)\)", readme, re.M)
            self.assertEqual(sorted(map(int, re.findall(r"\d+", told[1] if told else ""))), sorted(chapters), row)

    def test_each_claim_has_its_command(self):
        claims = re.findall(r"^- \*\*(.+?)\.\*\* ", (SOURCE / "README.md").read_text(), re.M)
        page = (SOURCE / "docs/trust.md").read_text()
        self.assertEqual(re.findall(r"^## (.*)$", page, re.M), claims)
        for section in page.split("\n## ")[1:]:
            self.assertTrue(commands(section), section.partition("\n")[0])

    @unittest.skipUnless(shutil.which(NVCC), "nvcc is not installed")
    def test_its_pair_compiles(self):
        listing = next(body for language, body in FENCE.findall((SOURCE / "README.md").read_text()) if language == "cpp")
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "twice.cu").write_text(listing)
            done = run(NVCC, "-std=c++20", "-arch=sm_90a", "-Werror=all-warnings", f"-I{SOURCE / 'include'}", "-c", f"{folder}/twice.cu", "-o",
                       f"{folder}/twice.o")
        self.assertEqual(done.returncode, 0, done.stderr)


class Checker(unittest.TestCase):
    def test_samples(self):
        text = "<!-- sample: h200 -->\n```console\n$ aisp run\nch07:box  wide  2.50x [2.4, 2.6]  2.5 ms -> 1 ms  faster\n```\n"
        self.assertEqual(samples(text), [("h200", "ch07:box", "wide", 2.5)])


if __name__ == "__main__":
    unittest.main()
