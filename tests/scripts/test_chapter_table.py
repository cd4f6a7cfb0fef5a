# SPDX-License-Identifier: Apache-2.0
"""The measured tables of a chapter's README, of made-up records."""
import unittest

from recorded import metrics, run, target, transpose, variant
from chapter_table import chapter_table, with_table


def by_target(*records):
    found = {}
    for record in records:
        found.setdefault(f"{record.chapter}:{record.name}", []).append(record)
    return found


def ladder():
    """"quick" rounds more than the lesson does."""
    return target(steps=["half", "wide", "tiled", "late"], libraries=["library", "quick", "absent"], changes_precision={"quick", "tiled"},
                  gains_over={"half": "direct", "wide": "half", "tiled": "half", "late": "half"})


def table_of(record):
    return chapter_table("ch07", [ladder()], by_target(record))


class ChapterTable(unittest.TestCase):
    def setUp(self):
        self.record = transpose()
        self.variants = self.record.variants

    def assert_shows(self, text):
        self.assertIn(text, table_of(self.record))

    def test_a_row_of_a_gpu_pair(self):
        table = table_of(self.record)
        self.assertTrue(table.startswith(
            "| pair | GPU | baseline | lesson | its time | speedup of the recorded runs | best variant | of its lower bound | of the library |\n"
            "| --- | --- | ---: | --- | ---: | ---: | --- | ---: | --- |\n"
            "| transpose | H200 | 4.20 ms | half | 1.40 ms | 3.00x [2.90, 3.10], 5 runs | tiled 7.72x | 93 % | "
            "33 % of library, best 64 % of quick |\n\n"), table)
        self.assertIn("\n### Steps, controls and libraries\n\n<details>\n<summary>A table of steps, controls, libraries</summary>\n\n"
                      "| pair | GPU | steps | controls | libraries |\n| --- | --- | --- | --- | --- |\n"
                      "| transpose | H200 | half 3.00x, tiled 7.72x (2.57x), late 6.00x (2.00x over half) | "
                      "serial 0.500x | library 9.00x, quick 12.0x |\n\n</details>\n\n", table)
        self.assertIn("\n- H200: NVIDIA H200, driver 580.159, CUDA 13.0, power limit 700 W; recorded 2026-01-02 at 012345678\n", table)
        self.assertNotIn("tale", table)

    def test_a_commit_with_changes_is_none_that_one_could_find(self):
        self.record.runs = [run(commit="0123456789abcdef+changes")]
        self.assertIn("at 012345678 with changes\n", " ".join(table_of(self.record).split("\n  ")))

    def test_few_runs_show_their_range_and_no_interval_of_further_runs(self):
        self.variants["half"].speedups = [2.8, 3, 3.3]
        self.assert_shows("| 1.40 ms | 3.00x (2.80 to 3.30, 3 runs) |")
        self.variants["half"].speedups = [2.8, 3, 3, 3.3]
        self.assert_shows("| 1.40 ms | 3.00x (2.80 to 3.30, 4 runs) |")
        self.variants["half"].speedups = [3]
        self.assert_shows("| 1.40 ms | 3.00x (1 run) |")
        self.record.judged_by = "bytes_moved"
        self.assert_shows("| 1.40 ms | 3.00x of bytes_moved (1 run) |")

    def test_where_runs_differ_by_half_times_stand_in_place_of_a_ratio(self):
        self.variants["direct"].medians_ms = [3.5, 5.25]
        half = self.variants["half"]
        half.medians_ms, half.speedups = [1.4, 1.4], [2.5, 3.74]
        self.assert_shows("| 3.00x (2.50 to 3.74, 2 runs) |")
        half.speedups = [2.5, 3.75]
        self.assert_shows("| no ratio: 3.50 to 5.25 ms against 1.40 ms, 2 runs |")
        self.assert_shows("| half 1.40 ms, tiled 7.72x (2.57x), late 6.00x (2.00x over half) |")
        half.speedups, half.low, half.medians_ms = [3] * 5, 2, [0.9, 1.4, 1.4, 1.4, 1.45]
        self.assert_shows("| no ratio: 3.50 to 5.25 ms against 900 us to 1.45 ms, 5 runs |")
        self.record.judged_by = "bytes_moved"
        self.variants["direct"].metrics, half.metrics = metrics(bytes_moved=(8, "GB")), metrics(bytes_moved=(2, "GB"))
        self.assert_shows("| no ratio: 8 GB against 2 GB of bytes_moved, 5 runs |")

    def test_a_gain_is_shown_where_it_is_steady_within_each_run(self):
        """The steps of one run share its baseline: what varies with that does not blur the gain of one over the other."""
        self.variants["half"].speedups, self.variants["tiled"].speedups = [2, 4], [5.2, 10.3]
        self.assert_shows("| half 1.40 ms, tiled 544 us (2.57x), ")
        self.variants["tiled"].speedups = [10.3, 5.2]
        self.assert_shows("| half 1.40 ms, tiled 544 us, ")

    def test_shares_of_the_best_variant_beside_those_of_the_lesson(self):
        self.variants["tiled"].percent_of_floor = 98.4
        del self.variants["quick"]
        self.assert_shows("| 93 %, best 98 % | 33 %, best 86 % of library |\n")
        self.variants["half"].percent_of_floor = None
        self.assert_shows("| best 98 % |")
        del self.variants["half"]
        self.assert_shows("| 4.20 ms | - | - | - | tiled 7.72x | best 98 % | best 86 % of library |\n")
        self.record = transpose()
        del self.record.variants["tiled"], self.record.variants["late"]
        self.assert_shows("| 3.00x [2.90, 3.10], 5 runs |  | 93 % | 33 % of library |\n")

    def test_a_library_that_is_slower_than_the_baseline_is_no_bar(self):
        self.variants["quick"].speedup = 0.9
        self.assert_shows("| 93 % | 33 %, best 86 % of library |\n")
        self.variants["library"].speedup = 0.998
        self.assert_shows("| tiled 7.72x | 93 % |  |\n")
        self.variants["library"].low = self.variants["library"].high = 0.998
        self.assert_shows("| library 0.998x, quick 0.900x |\n")
        self.variants["library"].speedup = 0.9996
        self.assert_shows("| 93 % | 300 %, best 772 % of library |\n")

    def test_a_library_that_runs_another_algorithm_is_marked(self):
        self.assertNotIn("nother algorithm", table_of(self.record))
        for name, cost in (("half", {"bytes": 8, "flops": 0}), ("tiled", {"bytes": 8, "flops": 4}), ("library", {"bytes": 9.99, "flops": 40}),
                           ("quick", {"bytes": 8, "flops": 5})):
            self.variants[name].cost = cost
        self.assert_shows("| 33 % of library, best 64 % of quick (*another algorithm*) |\n")
        self.assertIn("a library that declares 1.25 times the bytes or FLOPs of the variant beside it", " ".join(table_of(self.record).split("\n")))
        self.variants["library"].cost = {"bytes": 10, "flops": 0}
        self.assert_shows("| 33 % of library (*another algorithm*), best 64 % of quick (*another algorithm*) |\n")
        del self.variants["quick"]
        self.assert_shows("| 33 % (*another algorithm*), best 86 % of library (*another algorithm*) |\n")

    def test_what_else_judges_and_what_is_stale(self):
        self.record.judged_by = "bytes_moved"
        self.record.runs = [run("def")]
        self.assert_shows("3.00x [2.90, 3.10] of bytes_moved, 5 runs |")
        self.assert_shows("| H200 (**stale**) |")

    def test_metrics_of_the_baseline_and_of_the_best_variant(self):
        self.assertNotIn("metrics", table_of(self.record))
        self.variants["half"].metrics = metrics(images=(3, "images/s"))
        self.assertNotIn("metrics", table_of(self.record), "half is the lesson, and tiled is faster")
        self.variants["direct"].metrics = metrics(faults=(7, "of a|b"), images=(812.4, "images/s"), registers=(32, "registers"))
        self.variants["tiled"].metrics = metrics(captured=(0.97,), images=(6271000, "images/s"), registers=(32, "registers"))
        table = table_of(self.record)
        self.assertIn("| pair | GPU | steps | controls | libraries | metrics |", table)
        self.assertIn("| library 9.00x, quick 12.0x | tiled: images 812 to 6.27M images/s, captured - to 0.970, faults 7 to - of a\\|b |\n", table)
        self.assertIn("the one named. Metrics go", " ".join(table.split("\n")))
        self.record.lesson = "tiled"
        self.assert_shows("| images 812 to ")

    def test_of_many_metrics_those_that_differ_most(self):
        self.variants["direct"].metrics = metrics(a=(10,), b=(10,), c=(10,), d=(0,), e=(10,))
        self.variants["tiled"].metrics = metrics(a=(11,), b=(1,), c=(30,), d=(5,), e=(10,), f=(9,))
        self.assert_shows("| tiled: d 0 to 5, b 10 to 1, c 10 to 30 and 2 more |\n")

    def test_running_text_is_wrapped(self):
        self.record.runs = [run("def")]
        self.record.machine["gpu"] += " with a name that goes on and on, longer than that of any product that somebody has sold yet"
        table = table_of(self.record)
        self.assertEqual([line for line in table.split("\n") if len(line) > 100 and not line.startswith("|")], [])
        self.assertIn("\n\nStale: the code changed after the measurement; `aisp run --targets ch07 --update-expectations`\n"
                      "measures it again.\n", table)

    def test_only_one_of_two_pairs_has_metrics(self):
        counting, silent = transpose(name="counting"), transpose(name="silent")
        counting.variants["direct"].metrics = metrics(images=(5, "images/s"))
        table = chapter_table("ch07", [target(name) for name in ("counting", "silent", "unmeasured")], by_target(counting, silent))
        self.assertIn("| pair | GPU | controls | libraries | metrics |\n", table)
        self.assertIn("| counting | H200 | serial 0.500x | library 9.00x, quick 12.0x | tiled: images 5 to - images/s |\n"
                      "| silent | H200 | serial 0.500x | library 9.00x, quick 12.0x |  |\n\n", table)
        self.assertIn("| unmeasured | not measured yet |  |  |  |  |  |  |  |\n", table)

    def test_what_none_of_the_pairs_has_is_left_out(self):
        self.record.variants = {name: self.variants[name] for name in ("direct", "half")}
        table = chapter_table("ch07", [target()], by_target(self.record))
        self.assertIn("| transpose | H200 | 4.20 ms | half | 1.40 ms | 3.00x [2.90, 3.10], 5 runs |  | 93 % |  |\n", table)
        self.assertNotIn("###", table)

    def test_of_a_host_what_decides_its_times(self):
        self.record.machine = {"gpu": "", "cpu": "Some CPU", "cpus_usable": 0}
        self.assert_shows("Some CPU; recorded")
        self.record.machine.update(cpus_usable=16, numa_nodes=1, hypervisor="kvm")
        self.assertIn("Some CPU, 16 usable CPUs, 1 NUMA node, hypervisor kvm; recorded", " ".join(table_of(self.record).split("\n  ")))

    def test_other_chapters_do_not_count(self):
        table = chapter_table("ch07", [target(lesson="tiled")], by_target(transpose(chapter="ch08")))
        self.assertIn("| transpose | not measured yet |", table)
        self.assertEqual(chapter_table("ch07", [], {}), "This chapter has no pairs yet.\n")

    def test_both_kinds_of_hardware_have_a_row_below_one_name(self):
        table = chapter_table("ch07", [target(lesson="tiled")], by_target(transpose("2x_h200"), transpose("h200")))
        self.assertIn("\n| transpose | 2x H200 | 4.20 ms |", table)
        self.assertIn("\n|  | H200 | 4.20 ms |", table)

    def test_kinds_of_one_name_keep_their_keys(self):
        small, large = transpose("a100_40gb_pcie"), transpose("a100_80gb_pcie")
        small.machine["gpu"], large.machine["gpu"] = "NVIDIA A100 40GB PCIe", "NVIDIA A100 80GB PCIe"
        table = chapter_table("ch07", [target(lesson="tiled")], by_target(small, large))
        self.assertIn("| transpose | a100_40gb_pcie |", table)
        self.assertIn("|  | a100_80gb_pcie |", table)

    def test_pairs_of_one_commit_and_date_are_named_together(self):
        records = [transpose(name=name) for name in "abcd"]
        for record in records:
            record.machine["gpu"] = "X"
        records[1].runs = [run(date_utc="2026-01-01T03:04:05Z")]
        records[2].runs = [run(commit="fedcba9876543")]
        table = chapter_table("ch07", [target(name) for name in "abcd"], by_target(*records))
        self.assertIn("; recorded 2026-01-01 at 012345678 (b), 2026-01-02 at fedcba987 (c), 2026-01-02 at 012345678 (the others)\n",
                      " ".join(table.split("\n  ")))

    def test_text_of_others_stays_inside_its_cell(self):
        self.variants["a|b `c` <i> [d](e)"] = variant(1, 4, role="control")
        self.assert_shows("a\\|b \\`c\\` &lt;i> [d\\](e) 1.00x")

    def test_the_rest_of_the_page_is_kept(self):
        page = "a\n<!-- measured: begin -->\nx\ny\n<!-- measured: end -->\nb"
        self.assertEqual(with_table(page, "T\n"), "a\n<!-- measured: begin -->\n\nT\n\n<!-- measured: end -->\nb")


if __name__ == "__main__":
    unittest.main()
