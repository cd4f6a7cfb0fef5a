# SPDX-License-Identifier: Apache-2.0
"""Figures in prose that come from recorded expectations."""
import unittest

from recorded import metrics, transpose, variant
from quoted_figures import with_quoted_figures


def recorded(chapter="ch07"):
    record = transpose(chapter=chapter)
    moved = {"bytes": 4.2e6}
    record.variants = {
        "direct": record.variants["direct"],
        "tiled": variant(7.72, 0.544, percent_of_floor=92.8, cost={"bytes": 2.147e9}, metrics=metrics(
            images=(6271000, "images/s"), error=(0.0517, "% of (all|most) rows"), moved=(524288.4, "B"), splits=(8,))),
        "library": variant(9.65, 0.435, role="library")}
    record.variants["direct"].cost, record.variants["direct"].metrics = moved, metrics(images=(812.4, "images/s"))
    return {f"{chapter}:transpose": [record]}


def mark(words):
    return f"<!-- h200 ch07:transpose {words} -->"


class QuotedFigures(unittest.TestCase):
    def assert_written(self, page, expected):
        self.assertEqual(with_quoted_figures(page, recorded()), expected)

    def assert_refused(self, page, says):
        with self.assertRaises(ValueError) as refused:
            with_quoted_figures(page, recorded())
        self.assertIn(says, str(refused.exception))

    def test_what_was_recorded(self):
        self.assert_written(
            f"a 1x{mark('tiled speedup')} b 1 ms{mark('tiled time')}, 3 us{mark('direct time')}; 7 %{mark('tiled floor')}.",
            f"a 7.72x{mark('tiled speedup')} b 544 us{mark('tiled time')}, 4.20 ms{mark('direct time')}; 93 %{mark('tiled floor')}.")

    def test_a_comment_may_take_two_lines(self):
        self.assert_written("1x<!-- h200 ch07:transpose\ntiled speedup -->", "7.72x<!-- h200 ch07:transpose\ntiled speedup -->")
        self.assert_refused("1x<!--\nh200 ch07:transpose gone speedup -->", "<!-- h200 ch07:transpose gone speedup -->: nothing of that name")

    def test_one_variant_over_another(self):
        self.assert_written("1.0x" + mark("tiled/library speedup"), "0.800x" + mark("tiled/library speedup"))

    def test_one_of_many_requests(self):
        self.assert_written(f"1 us{mark('direct time/1000')}, 1 ns{mark('tiled time/2097152')}",
                            f"4.20 us{mark('direct time/1000')}, 0.259 ns{mark('tiled time/2097152')}")

    def test_bandwidth_is_of_the_bytes_that_were_declared(self):
        self.assert_written(f"1 GB/s{mark('direct bandwidth')}, 1\nTB/s{mark('tiled bandwidth')}",
                            f"1.00 GB/s{mark('direct bandwidth')}, 3.95\nTB/s{mark('tiled bandwidth')}")

    def test_metrics_have_the_unit_of_the_pair(self):
        self.assert_written(
            f"from 5 images/s{mark('direct metric:images')} to 12.5k\nimages/s{mark('tiled metric:images')}, in 4{mark('tiled metric:splits')}",
            f"from 812 images/s{mark('direct metric:images')} to 6.27M\nimages/s{mark('tiled metric:images')}, in 8{mark('tiled metric:splits')}")
        self.assert_written("-1 % of (all|most) rows" + mark("tiled metric:error"), "0.0517 % of (all|most) rows" + mark("tiled metric:error"))
        self.assert_written("0 B" + mark("tiled metric:moved"), "524288 B" + mark("tiled metric:moved"))
        self.assert_written("2-5 images/s" + mark("direct metric:images"), "2-812 images/s" + mark("direct metric:images"))
        right = "6.27M\nimages/s" + mark("tiled metric:images")
        self.assert_written(right, right)
        self.assert_refused("7 graphs/s" + mark("tiled metric:images"), "no figure stands right before it, as in 6.27M images/s")

    def test_folders_of_any_name(self):
        self.assertEqual(with_quoted_figures("1x<!-- h200 own_kernels:transpose tiled speedup -->", recorded("own_kernels")),
                         "7.72x<!-- h200 own_kernels:transpose tiled speedup -->")

    def test_a_line_break_before_the_unit_of_a_right_one_stays(self):
        page = f"in 544\nus{mark('tiled time')}, 2x as fast"
        self.assert_written(page, page)

    def test_other_comments_are_none_of_its_business(self):
        page = ("<!-- measured: begin -->\n12 ms<!-- not recorded: an example -->\n<!-- measured: end -->\n"
                "So it is not the width.<!-- answers ch07:transpose lesson:tiled control:aligned -->\n")
        self.assert_written(page, page)

    def test_what_was_not_recorded_is_refused(self):
        for name in ("h20 ch07:transpose tiled speedup", "h200 ch08:transpose tiled speedup", "h200 ch07:box tiled speedup",
                     "h200 ch07:transpose gone speedup", "h200 ch07:transpose tiled/gone speedup", "h200 ch07:transpose tiled width",
                     "h200 ch07:transpose library floor", "h200 ch07:transpose tiled/library time", "h200 ch07:transpose library bandwidth",
                     "h200 ch07:transpose tiled metric:rows", "h200 ch07:transpose library metric:images",
                     "h200 ch07:transpose tiled/direct metric:images", "h200 ch07:transpose tiled images", "h200 ch07:transpose tiled time/0",
                     "h200 ch07:transpose tiled time/many"):
            with self.subTest(name):
                self.assert_refused(f"1x<!-- {name} -->", f"<!-- {name} -->: nothing of that name is recorded")

    def test_a_comment_without_a_figure_is_refused(self):
        self.assert_refused("fast" + mark("tiled speedup"), "no figure stands right before it, as in 7.72x")
        self.assert_refused(mark("tiled speedup"), "no figure")


if __name__ == "__main__":
    unittest.main()
