# SPDX-License-Identifier: Apache-2.0
"""draw-timeline with made-up traces."""
import json
import pathlib
import re
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/draw-timeline"


def slice_of(category, start, duration, process=10, track=1300):
    return {"ph": "X", "name": "work", "pid": process, "tid": track, "ts": start, "dur": duration, "cat": category, "args": {"bytes": 1}}


def trace(variant, events, **other):
    names = [{"ph": "M", "name": "thread_name", "pid": 10, "tid": 1300, "args": {"name": "stream 13"}},
             {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "CUDA calls, thread 1"}}]
    return {"traceEvents": names + events, "otherData": {"pair": "ch01:example", "variant": variant, "tool": "aisp", **other}}


class DrawTimeline(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, content):
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    def run_script(self, *arguments):
        return subprocess.run([str(SCRIPT), *arguments], capture_output=True, text=True, check=False)

    def picture(self, *traces, zoom="0"):
        output = self.folder / "picture.svg"
        ended = self.run_script("--zoom", zoom, "--output", str(output), *traces)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        xml.etree.ElementTree.fromstring(output.read_text())
        return output.read_text()

    @staticmethod
    def kernels(picture):
        """Left edge and width of each bar."""
        paths = re.findall(r'<path class="c2" d="([^"]+)"', picture)
        return [(float(left), float(width)) for path in paths for left, width in re.findall(r"M([\d.]+) \d+h([\d.]+)v14h-[\d.]+z", path)]

    def test_committed_pictures_are_what_their_traces_say(self):
        ended = self.run_script("--check")
        self.assertEqual(ended.returncode, 0, ended.stderr)

    def test_bars_of_all_variants_share_one_scale(self):
        slow = self.write("slow.json", trace("slow", [slice_of("kernel", 5, 100), slice_of("copy", 205, 200)]))
        fast = self.write("fast.json", trace("fast", [slice_of("kernel", 0, 200)]))
        picture = self.picture(slow, fast)
        kernels = [width for left, width in self.kernels(picture) if left == 150]
        self.assertEqual(len(kernels), 2)
        self.assertAlmostEqual(kernels[1], 2 * kernels[0], delta=0.1)
        self.assertIn("400 µs, 1 kernel, GPU idle 25 %", picture)
        self.assertLess(picture.index(">slow<"), picture.index(">fast<"))

    def test_waits_of_the_host_are_no_work(self):
        path = self.write("t.json", trace("v", [slice_of("kernel", 0, 10), slice_of("kernel", 90, 10), slice_of("call", 10, 80, 1, 2)]))
        self.assertIn("GPU idle 80 %", self.picture(path))

    def test_the_enlarged_part_is_cut_at_its_ends(self):
        path = self.write("t.json", trace("v", [slice_of("kernel", 20 * i, 15) for i in range(50)]))
        picture = self.picture(path, zoom="50")
        self.assertIn("50 µs of it, enlarged", picture)
        bars = self.kernels(picture)
        self.assertGreater(len(bars), 50)
        for left, width in bars:
            self.assertGreaterEqual(left, 150)
            self.assertLessEqual(left + width, 860 - 16 + 0.31)

    def test_the_time_without_the_recorders_calls_is_told(self):
        kernel = [slice_of("kernel", 0, 300)]
        self.assertIn("166 µs when nothing is recorded; here 300 µs", self.picture(self.write("t.json", trace("v", kernel, span_us=166))))
        self.assertNotIn("nothing is recorded", self.picture(self.write("t.json", trace("v", kernel, span_us=299))))

    def test_an_excerpt_draws_the_same_picture(self):
        events = [slice_of("kernel", 0, 10), slice_of("range", 0, 90, 1, 1), {"ph": "C", "name": "memory", "pid": 10, "tid": 0, "ts": 0, "args": {}}]
        whole = self.write("whole.json", trace("v<1>", events, span_us=9))
        small = str(self.folder / "small.json")
        self.assertEqual(self.run_script("--excerpt", small, whole).returncode, 0)
        self.assertNotIn("args\":{\"bytes", pathlib.Path(small).read_text())
        self.assertEqual(self.picture(small), self.picture(whole))

    def test_what_cannot_be_drawn_is_one_line(self):
        for content in ("rubbish", "[]", "{}", json.dumps(trace("v", [])), json.dumps({"traceEvents": [{"ph": "X"}], "otherData": {}})):
            ended = self.run_script("--zoom", "0", "--output", str(self.folder / "p.svg"), self.write("bad.json", content))
            self.assertEqual(ended.returncode, 4, content)
            self.assertRegex(ended.stderr, r"\Adraw-timeline: .*bad\.json: .*\n\Z")
        self.assertEqual(self.run_script("--zoom", "0", "--output", "p.svg", str(self.folder / "absent.json")).returncode, 4)

    def test_usage(self):
        for arguments in (["--help"], ["--zoom", "much", "--output", "x", "y"], ["--excerpt", "x"], ["file"]):
            self.assertEqual(self.run_script(*arguments).returncode, 2, arguments)


if __name__ == "__main__":
    unittest.main()
