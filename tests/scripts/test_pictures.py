# SPDX-License-Identifier: Apache-2.0
"""The pictures of a chapter's README, of made-up records; rooflines by an executable that says what the test has it say."""
import json
import pathlib
import re
import tempfile
import types
import unittest
import xml.etree.ElementTree

from recorded import target, transpose, variant
from curves import curves_of
from pictures import chapter_picture, picture_marks
from svg import Picture, Scale

MACHINE = {"gpu": "NVIDIA <H200>", "driver": "580", "cuda": "13.0"}


def gather():
    record = transpose(name="gather")
    record.baseline, record.machine = "random", MACHINE
    record.variants = {"random": variant(1, 2, role="baseline"), "sorted": variant(2, 1, 1.9, 2.1)}
    return record


def ladder():
    record = transpose()
    record.machine = MACHINE
    return record


def sweep(**sizes):
    """Returns a sweep of points named after their sizes, where every variant takes 1 ms for 1 MB a step."""
    points = [dict(zip(sizes, values)) for values in zip(*sizes.values())]
    return {"target": "ch07:transpose", "lesson": "tiled", "bound": "memory", "source_digest": "abc", "recorded": MACHINE, "points": [{
        "case": "_".join(f"{name}_{value}" for name, value in point.items()), "sizes": point, "variants": [
            {"name": name, "role": role, "median_ms": 1.0, "cost": {"bytes": 1e6 * (at + 1), "flops": 0, "math": ""}, **further}
            for name, role, further in (("direct", "baseline", {}), ("tiled", "optimized", {"speedup": 2.5, "floor_ms": 0.5}))]}
        for at, point in enumerate(points)]}


def roofline_of(*pairs):
    variants = [{"name": name, "role": role, "is_lesson": role == "optimized", "flops": 2e9, "math": "fp32", "intensity_flop_per_byte": 2.0}
                for name, role in (("random", "baseline"), ("sorted", "optimized"))]
    return {"rooflines": [{"hardware": "h200", "machine": "", "ridges_flop_per_byte": {"fp32": 15.0, "bf16": 200.0},
                           "ceilings": {"memory_bytes_s": 4e12, "flops_s": {"fp32": 60e12}, "flops_from": {"fp32": "guess"}, "source": "measured"},
                           "pairs": [{"target": pair, "stale": False, "variants": variants} for pair in pairs]}]}


class Pictures(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.aisp = pathlib.Path(folder.name) / "aisp"
        self.pages = types.SimpleNamespace(
            aisp=self.aisp, expectations="expectations", sweeps={}, counted={},
            targets=[target("box"), target("gather", "sorted", steps=["sorted"], gains_over={"sorted": "random"}),
                     target(steps=["half", "tiled"], gains_over={"half": "direct", "tiled": "half"}, libraries=["library", "quick"],
                            changes_precision={"quick"})],
            records={"ch07:gather": [gather()], "ch07:transpose": [ladder()]})

    def answer(self, content):
        """Has the executable answer with this, and write its arguments beside it."""
        self.aisp.with_suffix(".json").write_text(content)
        self.aisp.write_text('#!/bin/sh\necho "$@" >"$0.arguments"\ncat "$0.json"\n')
        self.aisp.chmod(0o755)

    def drawn(self, what):
        (mark,) = picture_marks(f"![a](a.svg)<!-- picture: {what} -->")
        picture = chapter_picture(mark, "ch07", self.pages, "")
        xml.etree.ElementTree.fromstring(picture)
        return picture

    def assert_refused(self, what, why):
        with self.assertRaisesRegex(ValueError, why):
            self.drawn(what)

    def assert_in_order(self, picture, *names):
        places = [picture.find(f">{name}<") for name in names]
        self.assertNotIn(-1, places)
        self.assertEqual(places, sorted(places))

    def test_speedups_of_every_variant_in_the_order_of_the_steps(self):
        picture = self.drawn("speedups h200")
        self.assert_in_order(picture, "gather", "random", "sorted", "transpose", "direct", "half", "tiled", "serial", "library", "quick")
        for text in ("Chapter 7 on h200", "NVIDIA &lt;H200&gt;", ">1x, 4.20 ms<", ">7.72x (2.57x over half)<"):
            self.assertIn(text, picture)
        self.assertNotIn(">box<", picture)
        self.assertNotIn(">gather<", self.drawn("speedups h200 transpose"))

    def test_bars_have_the_role_of_their_variant_and_the_length_of_their_value(self):
        bars = {name: (style, float(width)) for style, width, name in re.findall(
            r'<rect class="(\w+)" x="[\d.]+" y="[\d.]+" width="([\d.]+)" height="13.0"><title>(\w+):', self.drawn("speedups h200 transpose"))}
        self.assertEqual({name: style for name, (style, _) in bars.items()}, {
            "direct": "baseline", "half": "best", "tiled": "optimized", "serial": "unclear", "library": "library", "quick": "library"})
        self.assertAlmostEqual(bars["library"][1] / bars["half"][1], 3, delta=0.01)

    def test_the_range_of_runs_is_a_whisker(self):
        self.assertEqual(self.drawn("speedups h200 gather").count('class="whisker"'), 0, "one run shows none")
        self.pages.records["ch07:gather"][0].variants["sorted"].speedups = [1.8, 2, 2.4]
        self.assertEqual(self.drawn("speedups h200 gather").count('class="whisker"'), 3)

    def test_a_ratio_that_is_not_steady_is_written_as_its_range(self):
        self.pages.records["ch07:transpose"][0].variants["half"].speedups = [3, 5]
        self.assertIn(">3.00 to 5.00x<", self.drawn("speedups h200 transpose"))

    def test_stale_records_are_marked(self):
        self.pages.sweeps["h200", "ch07:transpose"] = sweep(n=(64, 128, 256))
        kinds = ("speedups h200", "library h200", "sweep h200 transpose")
        self.assertNotIn("stale", "".join(map(self.drawn, kinds)))
        self.pages.targets[2].source_digests = ["fed"]
        self.assertIn(">ch07:transpose (stale: its code changed since) on NVIDIA", self.drawn("sweep h200 transpose"))
        self.assertIn(">transpose (stale: its code changed since)<", self.drawn("speedups h200"))
        self.assertIn(">transpose (stale: its code changed since) (100 %: library)<", self.drawn("library h200"))

    def test_shares_are_of_the_fastest_library_that_is_as_precise(self):
        picture = self.drawn("library h200")
        for text in (">transpose (100 %: library)<", ">11 %<", ">33 %<", ">86 %<"):
            self.assertIn(text, picture)
        self.assertNotIn("gather", picture)

    def test_a_roofline_is_what_the_executable_draws(self):
        self.answer("<svg/>")
        self.assertEqual(self.drawn("roofline h200"), "<svg/>")
        self.assertEqual(self.aisp.with_suffix(".arguments").read_text(),
                         "roofline --expectations-dir expectations --chapter ch07 --hardware h200 --svg -\n")

    def test_intensities_beside_their_ridge(self):
        self.answer(json.dumps(roofline_of("ch07:gather")))
        picture = self.drawn("intensity h200")
        for text in (">gather<", ">fp32 ridge 15.0<", "random, sorted: 2.0 FLOP/byte in fp32",
                     ">Ceilings: memory 4.00 TB/s, fp32 ~60.0 TFLOP/s (measured)<"):
            self.assertIn(text, picture)
        self.assertNotIn("bf16 ridge", picture, "no pair has such math")
        roofline = roofline_of("ch07:gather")
        roofline["rooflines"][0]["pairs"][0]["stale"] = True
        self.answer(json.dumps(roofline))
        self.assertIn(">gather (stale)<", self.drawn("intensity h200"))

    def test_counted_bytes_move_a_pair_along_the_axis(self):
        self.answer(json.dumps(roofline_of("ch07:gather")))
        for counted, shown in ((4e9, True), (1.01e9, False)):
            self.pages.counted["h200", "ch07:gather"] = {"variants": [
                {"name": name, "counters": {"dram_read_bytes": moved / 2, "dram_write_bytes": moved / 2}}
                for name, moved in (("random", counted), ("sorted", 1e9))]}
            picture = self.drawn("intensity h200")
            self.assertEqual("counted: 0.50 FLOP/byte before, 2.0 after" in picture, shown)
            self.assertEqual("Arrows: " in picture, shown)

    def test_a_sweep_is_a_line_a_variant_and_what_the_machine_allows(self):
        self.pages.sweeps["h200", "ch07:transpose"] = sweep(n=(64, 128, 256))
        picture = self.drawn("sweep h200 transpose")
        for text in (">ch07:transpose on NVIDIA &lt;H200&gt;", ">GB/s<", ">64<", ">256<", ">n<", ">tiled (lesson)<", ">what the machine allows<",
                     "ch07:transpose n_128, tiled: 2.00 GB/s"):
            self.assertIn(text, picture)
        self.assertEqual(picture.count("<polyline"), 3)
        speedups = self.drawn("sweep_speedups h200 transpose")
        self.assertIn(">speedup over the baseline<", speedups)
        self.assertIn("tiled: 2.50x", speedups)
        self.assertNotIn("allows", speedups)

    def test_a_sweep_without_declared_work_shows_times(self):
        swept = sweep(n=(64, 128, 256))
        for point in swept["points"]:
            for each in point["variants"]:
                each["cost"]["bytes"] = 0
        self.pages.sweeps["h200", "ch07:transpose"] = swept
        self.assertIn(">median<", self.drawn("sweep h200 transpose"))

    def test_cases_that_form_no_curve_stand_side_by_side(self):
        self.pages.sweeps["h200", "ch07:transpose"] = sweep(m=(64, 4, 1024), n=(1, 2, 3))
        self.assertEqual(curves_of(self.pages.sweeps["h200", "ch07:transpose"]["points"]), [])
        picture = self.drawn("sweep h200 transpose")
        self.assertIn(">m_64_n_1<", picture)
        self.assertNotIn("<polyline", picture)

    def test_what_is_not_recorded_is_refused(self):
        self.assert_refused("speedups h200 transpose box", "ch07:box is not recorded on h200")
        self.assert_refused("speedups b200", "nothing of ch07 is recorded on b200")
        self.assert_refused("library h200 gather", "nothing of this kind is recorded on h200")
        self.assert_refused("roofline h200 gather", "name no pair")
        self.assert_refused("sweep h200", "is of one pair")
        self.assert_refused("sweep h200 gather", "no sweep of ch07:gather is recorded on h200; aisp run --targets ch07:gather --sweep")
        self.answer(json.dumps(roofline_of()))
        self.assert_refused("intensity h200", "nothing of this kind")

    def test_figures_of_a_picture_drawn_by_hand_are_filled(self):
        (mark,) = picture_marks("![a](a.svg)<!-- picture: drawn by hand: no record says it -->")
        with self.assertRaisesRegex(ValueError, "not there"):
            chapter_picture(mark, "ch07", self.pages, "")
        self.assertIn("3.00x<!--", chapter_picture(mark, "ch07", self.pages, "<svg>1x<!-- h200 ch07:transpose half speedup --></svg>"))


class Marks(unittest.TestCase):
    def test_a_mark_says_what_a_link_shows(self):
        marks = picture_marks("![a](a.svg)<!-- picture: speedups h200 -->, [b](b.svg)<!-- picture:\nlibrary h100 x\n  y -->\n"
                              "![c](c.svg)<!-- picture: drawn by\nhand: no evidence -->, [other](../ch01/d.svg), [page](README.md)")
        self.assertEqual([(mark.file, mark.kind, mark.hardware, mark.pairs) for mark in marks], [
            ("a.svg", "speedups", "h200", []), ("b.svg", "library", "h100", ["x", "y"]), ("c.svg", "", "", [])])

    def test_a_link_without_a_mark_is_refused(self):
        for link, why in (("![a](a.svg)", "a.svg: no comment after it"), ("![a](a.svg) <!-- picture: speedups h200 -->", "no comment"),
                          ("![a](a.svg)<!-- picture: pie h200 -->", "'pie h200' is no kind"), ("![a](a.svg)<!-- picture: speedups -->", "is no kind"),
                          ("![a](a.svg)<!-- picture: drawn by hand -->", "is no kind")):
            with self.subTest(link=link), self.assertRaisesRegex(ValueError, why):
                picture_marks(link)


class Shapes(unittest.TestCase):
    def test_pictures_stand_alone_in_light_and_dark(self):
        picture = Picture("a <title>", 100)
        picture.text("name", 1, 2, "12 us & more")
        text = picture.alone(50)
        self.assertEqual(xml.etree.ElementTree.fromstring(text).get("aria-label"), "a <title>")
        self.assertIn(">12 µs &amp; more<", text)
        self.assertRegex(text, r"prefers-color-scheme:\s*dark")

    def test_ticks_are_round_and_inside_of_the_scale(self):
        self.assertEqual(Scale(False, 0, 10, 0, 100).ticks(6), [0, 2, 4, 6, 8, 10])
        self.assertEqual(Scale(True, 1, 100, 0, 100).ticks(9), [1, 2, 5, 10, 20, 50, 100])
        self.assertEqual(Scale(True, 1, 100, 0, 100).ticks(3), [1, 10, 100])
        self.assertEqual(Scale(True, 1, 100, 0, 100).at(10), 50)


if __name__ == "__main__":
    unittest.main()
