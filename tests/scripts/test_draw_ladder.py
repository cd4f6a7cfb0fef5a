# SPDX-License-Identifier: Apache-2.0
"""draw-ladder with made-up expectations."""
import json
import unittest
import xml.etree.ElementTree as ElementTree

from machine import Machine

SVG = "{http://www.w3.org/2000/svg}"


def pair(baseline_ms, library_ms, **optimized_ms):
    variants = {name: {"role": "optimized"} for name in optimized_ms}
    measured = {name: {"median_ms": median_ms} for name, median_ms in optimized_ms.items()}
    if library_ms:
        variants["cublas"] = {"role": "library"}
        measured["cublas"] = {"median_ms": library_ms}
    run = {"source_digest": "now", "baseline_median_ms": baseline_ms, "variants": measured}
    # One of the same code that was slower, one that was faster, and one of other code.
    around = [run | {"variants": {n: {"median_ms": v["median_ms"] * factor} for n, v in measured.items()}} for factor in (0.9, 3)]
    return {"baseline": "naive", "variants": variants, "runs": [run | {"source_digest": "before", "baseline_median_ms": 99.0}, *around, run]}


# Out of the order of the ladder; one rung is faster than the library, one pair has none beside it, one is no rung.
PAIRS = {"wgmma_matmul": pair(2.0, 1.0, one_warpgroup=1.25, two_warpgroups=0.8), "tensor_core_matmul": pair(10.0, 1.0, mma=4.0),
         "persistent_matmul": pair(2.0, None, alone=1.0), "cluster": pair(2.0, 1.0, no_rung=1.0)}


class DrawLadder(Machine):
    def setUp(self):
        super().setUp()
        self.picture = self.work / "chapters/ch10/ladder.svg"
        self.picture.parent.mkdir(parents=True)
        self.expectations = self.work / "expectations/h200/ch10.json"
        self.expectations.parent.mkdir(parents=True)

    def expect(self, pairs):
        self.expectations.write_text(json.dumps({"machines": {"0": {"gpu": "NVIDIA <made up>"}}, "pairs": pairs}))

    def draw(self, *arguments):
        return self.run_script("draw-ladder", *arguments)

    def drawn(self, pairs):
        """The picture, and its bars from top to bottom: (label, percent as told, left end, width, class)."""
        self.expect(pairs)
        self.assert_status(self.draw(), 0)
        svg = ElementTree.parse(self.picture).getroot()
        texts = {kind: [text.text for text in svg.iter(SVG + "text") if text.get("class") == kind] for kind in ("variant", "value", "name")}
        rects = sorted((rect for rect in svg.iter(SVG + "rect") if rect.get("class") != "paper"), key=lambda rect: float(rect.get("y")))
        self.assertEqual(len(texts["variant"]), len(rects))
        return svg, texts, [(label, value, float(rect.get("x")), float(rect.get("width")), rect.get("class"))
                            for label, value, rect in zip(texts["variant"], texts["value"], rects)]

    def test_bars_are_speeds_in_percent_of_the_library(self):
        svg, texts, bars = self.drawn(PAIRS)
        self.assertEqual(texts["name"], ["tensor_core_matmul", "wgmma_matmul"])
        self.assertEqual([(bar[0], bar[1], bar[4]) for bar in bars],
                         [("naive", "10 %", "baseline"), ("mma", "25 %", "optimized"), ("naive", "50 %", "baseline"),
                          ("one_warpgroup", "80 %", "optimized"), ("two_warpgroups", "125 %", "optimized")])
        for (*_, width, _), percent in zip(bars, (10, 25, 50, 80, 125)):
            self.assertAlmostEqual(width, bars[-1][3] * percent / 125, delta=0.11)
        self.assertLessEqual(bars[-1][2] + bars[-1][3], float(svg.get("width")))

    def test_the_line_stands_where_a_bar_of_100_percent_would_end(self):
        svg, _, bars = self.drawn(PAIRS)
        line = svg.find(SVG + "line")
        self.assertEqual(line.get("x1"), line.get("x2"))
        self.assertAlmostEqual(float(line.get("x1")), bars[-1][2] + bars[-1][3] / 1.25, delta=0.11)
        slow = {"wgmma_matmul": pair(10.0, 1.0, slow=5.0)}
        svg, _, bars = self.drawn(slow)
        end = float(svg.find(SVG + "line").get("x1"))
        self.assertAlmostEqual(end, bars[-1][2] + bars[-1][3] * 5, delta=0.6)
        self.assertLess(end, float(svg.get("width")), "also where nothing reaches it")

    def test_the_title_names_the_gpu(self):
        svg, _, _ = self.drawn(PAIRS)
        self.assertIn("NVIDIA <made up>", svg.find(f"{SVG}text[@class='title']").text)

    def test_check_tells_a_picture_that_is_out_of_date_and_writes_nothing(self):
        self.expect(PAIRS)
        self.assert_refused(self.draw("--check"), 1, "ladder.svg", "run scripts/draw-ladder")
        self.assertFalse(self.picture.exists())
        self.assert_status(self.draw(), 0)
        self.assert_status(self.draw("--check"), 0)
        before = self.picture.read_text()
        self.expect(PAIRS | {"wgmma_matmul": pair(2.0, 1.0, one_warpgroup=1.2)})
        self.assert_refused(self.draw("--check"), 1, "ladder.svg")
        self.assertEqual(self.picture.read_text(), before)

    def test_without_expectations_there_is_no_picture(self):
        self.picture.write_text("as it was")
        self.assert_refused(self.draw(), 4, "expectations/h200/ch10.json", "No such file")
        for text in ("rubbish", "[]", "{}", json.dumps({"pairs": {}}), json.dumps({"pairs": {"wgmma_matmul": {}}}),
                     json.dumps({"machines": {"0": {"gpu": "x"}}, "pairs": {"wgmma_matmul": pair(0.0, 1.0)}})):
            with self.subTest(text):
                self.expectations.write_text(text)
                for arguments in ([], ["--check"]):
                    self.assert_refused(self.draw(*arguments), 4, "expectations/h200/ch10.json")
        self.assertEqual(self.picture.read_text(), "as it was")

    def test_usage(self):
        for arguments in (["--bogus"], ["--check", "more"], ["file"]):
            self.assert_refused(self.draw(*arguments), 2, "scripts/draw-ladder [--check]")


if __name__ == "__main__":
    unittest.main()
