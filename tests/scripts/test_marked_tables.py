# SPDX-License-Identifier: Apache-2.0
"""Tables of recorded counters and sweeps in READMEs."""
import unittest
from functools import partial

from recorded import target
from curves import curves_of
from marked_tables import counted_table, swept_table, with_marked_tables

CHAPTER = [target(lesson="tiled", source_digests=["abc"]), target("scan", "single_pass", source_digests=["fed"])]
RECORDED = {"date_utc": "2026-01-02T03:04:05Z", "commit": "0123456789abcdef"}


def counted_transpose(source_digest="abc"):
    variants = [("direct", "baseline", 32.0), ("tiled", "optimized", 4.0), ("wide", "optimized", 16.0)]
    return {("h200", "ch07:transpose"): {
        "lesson": "tiled", "source_digest": source_digest, "recorded": RECORDED,
        "variants": [{"name": name, "role": role, "counters": {"sectors_per_store": sectors, "flops": {}, "stalls": []}}
                     for name, role, sectors in variants]}}


def with_counted(page, counted, targets=None):
    return with_marked_tables(page, "counted", partial(counted_table, targets=targets or CHAPTER, counted=counted))


def page_of(words, counted):
    return with_counted(f"a\n<!-- counted: {words} -->\nold\n<!-- counted: end -->\nz\n", counted)


class CountedTable(unittest.TestCase):
    def test_rows_of_baseline_and_lesson(self):
        self.assertEqual(page_of("h200 transpose", counted_transpose()),
                         "a\n<!-- counted: h200 transpose -->\n\n"
                         "| pair: variant | sectors/store |\n| --- | --- |\n| transpose: direct | 32.0 |\n| transpose: tiled | 4.00 |\n\n"
                         "Counted on h200 on 2026-01-02 at 012345678. Of each pair the baseline comes first.\n\n"
                         "<!-- counted: end -->\nz\n")

    def test_every_counter_has_its_unit(self):
        counted = counted_transpose()
        counted["h200", "ch07:transpose"]["variants"][0]["counters"] = {
            "duration_us": 1234.5, "sm_throughput_percent": 61.7, "dram_read_bytes": 1.5 * 2**30, "bank_conflicts": 12345, "sectors_per_load": 8.0,
            "flops": {"fp32": 2.5e9, "tensor bf16": 1e12}, "uncounted_instructions_percent": 3.0,
            "stalls": [{"reason": reason, "percent": 10.4} for reason in ("long_scoreboard", "gmma", "unheard_of", "wait")]}
        self.assertIn("| transpose: direct | 1.23 ms | 62 % | 1.5 GiB | 12.3 k | 8.00 | - | 2.50 GFLOP fp32, 1.00 TFLOP tensor bf16, in graphs not "
                      "counted | global memory 10 %, wgmma's registers 10 %, unheard_of 10 % |\n", page_of("h200 transpose", counted))

    def test_further_variants_are_named(self):
        self.assertIn("| transpose: wide | 16.0 |", page_of("h200 transpose/wide", counted_transpose()))

    def test_the_page_is_written_again_unchanged(self):
        page = page_of("h200 transpose", counted_transpose())
        self.assertEqual(with_counted(page, counted_transpose()), page)

    def test_the_mark_may_take_several_lines(self):
        mark = "<!-- counted:\nh200 transpose\n  scan -->"
        written = with_counted(mark + "\n<!-- counted: end -->", counted_transpose())
        self.assertTrue(written.startswith(mark + "\n\n| pair: variant |"), written)
        self.assertIn("Not counted on h200 yet: scan.\n\n<!-- counted: end -->", written)
        self.assertEqual(with_counted(written, counted_transpose()), written)
        with self.assertRaisesRegex(ValueError, "a table ends here that has not begun"):
            with_counted("<!-- counted: h200\ntranspose\n<!-- counted: end -->", {})

    def test_running_text_is_wrapped(self):
        many = [target(f"a_pair_of_number_{number}") for number in range(10, 20)]
        page = f"<!-- counted: h200 {' '.join(one.name for one in many)} -->\n<!-- counted: end -->"
        lines = with_counted(page, {}, many).split("\n")
        self.assertGreater(len(lines), 6)
        self.assertEqual([line for line in lines[1:] if len(line) > 100], [])
        self.assertTrue(lines[2].startswith("Not counted on h200 yet: a_pair_of_number_10, a_pair"), lines[2])

    def test_what_is_stale_and_what_is_missing(self):
        page = page_of("h200 transpose scan", counted_transpose("other"))
        self.assertIn("Stale, since the code changed after the counting: transpose.\n", page)
        self.assertIn("Not counted on h200 yet: scan.\n", page)
        self.assertNotIn("|", page_of("h100 transpose", counted_transpose()))

    def test_what_cannot_be_placed_is_refused(self):
        for page, says in (("a\n<!-- counted: h200 transposed -->\n<!-- counted: end -->\n", "line 2: ch07 has no pair transposed"),
                           ("<!-- counted: h200 -->\n<!-- counted: end -->\n", "line 1: it names no pair"),
                           ("<!-- counted: h200 scan -->\n", "a table has no line <!-- counted: end -->"),
                           ("<!-- counted: h200 scan -->\n<!-- counted: h200 scan -->\n<!-- counted: end -->\n", "line 2: a table begins here before"),
                           ("<!-- counted: end -->\n", "line 1: a table ends here")):
            with self.subTest(page), self.assertRaisesRegex(ValueError, says):
                with_counted(page, {})


def swept_transpose(**further):
    points = [{"case": f"rows_{rows}", "sizes": {"rows": rows}, "variants": [
        {"name": "direct", "role": "baseline", "median_ms": 0.002 * rows},
        {"name": "tiled", "role": "optimized", "median_ms": 0.001 * rows, "speedup": 2}]} for rows in (64, 128)]
    return {"lesson": "tiled", "source_digest": "abc", "recorded": RECORDED, "points": points, **further}


def swept(words, sweep=None, page=None):
    sweeps = {("h200", "ch07:transpose"): sweep or swept_transpose()}
    return with_marked_tables(page or f"<!-- swept: {words} -->\n<!-- swept: end -->", "swept", partial(swept_table, targets=CHAPTER, sweeps=sweeps))


class SweptTable(unittest.TestCase):
    def test_a_row_for_each_point(self):
        written = swept("h200 transpose")
        self.assertIn("| rows | direct | tiled | speedup |\n| --- | --- | --- | --- |\n"
                      "| 64 | 128 us | 64.0 us | 2.00x |\n| 128 | 256 us | 128 us | 2.00x |\n", written)
        self.assertIn("transpose on h200, 2026-01-02 at 012345678.\n", written)
        self.assertEqual(swept("", page=written), written)
        self.assertIn("The sweep of scan was not recorded on h200 yet.", swept("h200 scan"))
        self.assertIn("stale", swept("h200 transpose", swept_transpose(source_digest="other")))
        with self.assertRaises(ValueError):
            swept("h200 transposed")

    def test_shares_of_the_ceiling_and_what_was_not_timed(self):
        sweep = swept_transpose()
        sweep["points"][0]["variants"][1]["floor_ms"] = 0.032
        sweep["points"][1]["variants"].pop()
        self.assertIn("| 64 | 128 us | 64.0 us | 2.00x | 50 % |\n| 128 | 256 us | - | - | - |\n", swept("h200 transpose", sweep))

    def test_points_on_no_curve_have_their_names(self):
        sweep = swept_transpose()
        sweep["points"].append({"case": "decode", "variants": []})
        for point, sizes in zip(sweep["points"], ({"m": 1, "n": 8}, {"m": 2, "n": 4}, {"m": 4, "n": 9})):
            point["sizes"] = sizes
        written = swept("h200 transpose", sweep)
        self.assertIn("| case | direct | tiled | speedup |", written)
        self.assertIn("| decode | - | - | - |", written)


class Curves(unittest.TestCase):
    @staticmethod
    def curves(*sizes):
        return curves_of([{"sizes": one} for one in sizes])

    def test_one_size_in_its_order(self):
        (curve,) = self.curves({"n": 256}, {"n": 64}, {"n": 128})
        self.assertEqual((curve.size, curve.points, curve.geometric), ("n", [1, 2, 0], True))
        (curve,) = self.curves({"n": 100}, {"n": 200}, {"n": 300})
        self.assertFalse(curve.geometric)

    def test_a_grid_has_a_curve_for_each_value_of_the_size_with_fewer(self):
        curves = self.curves(*({"k": k, "m": m} for m in (1, 2, 4) for k in (8, 16)))
        self.assertEqual([(curve.size, curve.fixed) for curve in curves], [("m", {"k": 8}), ("m", {"k": 16})])
        self.assertEqual(curves[0].points, [0, 2, 4])

    def test_sizes_that_change_together_form_one_curve(self):
        (curve,) = self.curves({"m": 1, "n": 8}, {"m": 2, "n": 4}, {"m": 4, "n": 2})
        self.assertEqual((curve.size, curve.along), ("m", ["n"]))

    def test_shapes_that_have_nothing_in_common_form_none(self):
        self.assertEqual(self.curves({"m": 1, "n": 8}, {"m": 2, "n": 4}, {"m": 4, "n": 9}), [])
        self.assertEqual(self.curves({"m": 1}), [])


if __name__ == "__main__":
    unittest.main()
