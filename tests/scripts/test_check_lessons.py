# SPDX-License-Identifier: Apache-2.0
"""check-lessons with made-up pairs, records and READMEs: a planted false sentence of each kind is found, and its answer settles it."""
import json
import pathlib
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = SOURCE / "scripts/check-lessons"
# No finding may join those that are open: this number only becomes smaller.
MOST_OPEN = 0

PAIR = """extern constinit const Pair box{
    .teaches = "wide loads",
    .lesson = "wide",
    .baseline = {.name = "narrow", .run = call<&Box::narrow>},
    .optimized = variants({{.name = "wide", .run = call<&Box::wide>, .needs = {.cpus = 2}},
                           {.name = "ring", .run = call<&Box::ring>%(over)s}}),
    .controls = variants({{.name = "aligned", .run = call<&Box::aligned>}}),
    .libraries = variants({{.name = "lib", .run = call<&Box::lib>}, {.name = "lib_tuned", .run = call<&Box::lib>}}),
    .sweep = cases({{"width_1", "width=1"}, {"width_2", "width=2"}}),
};
"""
GOOD = {"wide": 2.0, "ring": 2.5, "aligned": 1.5, "lib": 2.1, "lib_tuned": 2.2}
ROLES = {"aligned": "control", "lib": "library", "lib_tuned": "library"}
README = """# Chapter 7

## The story

### Boxes: [box](box.cu)

| step | gain over the step before | what it changes | why it helps |
| --- | --- | --- | --- |
| `wide` | H100 2.00x | 16 bytes a load | more bytes in flight |
| `ring` | H100 1.25x | a ring | the next row is on its way |

The control `aligned` copies an aligned slice. Here is prose.

## Measured

<!-- measured: begin -->

| pair | GPU | baseline | lesson | its time | speedup of the recorded runs | best variant | of its lower bound | of the library |
| --- | --- | ---: | --- | ---: | ---: | --- | ---: | --- |
| box | H100 | 2 ms | wide | 1 ms | 2.00x (1.90 to 2.10, 3 runs) |  | 90 % | 91 %, best 114 % of lib_tuned |

<!-- measured: end -->
"""
PROSE = "Here is prose."


class CheckLessons(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write("chapters/ch07/box.cu", PAIR % {"over": ""})
        self.write("chapters/ch07/README.md", README)
        self.write("chapters/expected-gains.tsv", "target\tmin_speedup\texpected_gain\nch07:box\t1.5\t2.5\n")
        self.record(GOOD)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def record(self, speedups, hardware="h100_80gb_hbm3", gpu="NVIDIA H100 80GB HBM3", metric=None):
        run = {"machine": "m", "source_digest": "d", "baseline_median_ms": 2, "variants": {
            name: {"speedup": speedup, "speedup_low": speedup, "speedup_high": speedup, "median_ms": 2 / speedup}
            for name, speedup in speedups.items()}}
        if metric is not None:
            run["baseline_metrics"] = run["variants"]["wide"]["metrics"] = {"faults": {"value": metric, "unit": "faults"}}
        entry = {"baseline": "narrow", "lesson": "wide", "judged_by": "time", "runs": [run], "variants": {
            name: {"role": ROLES.get(name, "optimized")} for name in speedups}}
        self.write(f"expectations/{hardware}/ch07.json", json.dumps(
            {"schema_version": 3, "chapter": "ch07", "hardware": hardware, "machines": {"m": {"gpu": gpu}}, "pairs": {"box": entry}}))

    def sweep_of(self, name):
        return json.dumps({"schema_version": 1, "target": f"ch07:{name}", "hardware": "h200", "lesson": "wide", "source_digest": "d",
                           "recorded": {}, "points": []})

    def edit(self, before, after):
        path = self.root / "chapters/ch07/README.md"
        self.assertIn(before, path.read_text())
        path.write_text(path.read_text().replace(before, after))

    def call(self, *arguments):
        return subprocess.run([str(SCRIPT), "--root", str(self.root), *arguments], capture_output=True, text=True, check=False)

    def record_with_gains(self, speedups, **options):
        """If records differ in what a step gains, the column of gains is not what is wrong."""
        self.record(speedups, **options)
        self.assertEqual(self.call("--write").returncode, 0)

    def assert_good(self):
        ended = self.call()
        self.assertEqual((ended.returncode, ended.stdout, ended.stderr), (0, "", ""))

    def assert_found(self, key, says):
        ended = self.call()
        self.assertEqual(ended.returncode, 1, ended.stderr)
        self.assertRegex(ended.stdout, rf"^chapters/ch07/README\.md:\d+: ch07:box: {key}: .*{says}")
        self.assertEqual(len(ended.stdout.splitlines()), 1, ended.stdout)

    def assert_answered(self, key):
        self.edit(PROSE, f"This sentence answers it.<!-- answers ch07:box {key} -->")
        self.assert_good()

    def test_true_sentences_pass(self):
        self.assert_good()

    def test_a_lesson_that_gains_nothing(self):
        self.record_with_gains(GOOD | {"wide": 1.025, "aligned": 1.2})
        self.assert_found("lesson:wide", r"gains 1\.02x over `narrow` on H100")
        self.assert_answered("lesson:wide")

    def test_a_lesson_after_a_step_that_loses(self):
        self.write("chapters/ch07/box.cu", (PAIR % {"over": ""}).replace('.lesson = "wide"', '.lesson = "ring"'))
        self.record_with_gains(GOOD | {"wide": 0.8, "ring": 1.01, "aligned": 1.2})
        self.edit("more bytes in flight", "loses")
        self.assert_found("lesson:ring", r"gains 1\.01x over `narrow` on H100")

    def test_a_reason_for_a_step_that_does_not_help(self):
        self.record_with_gains(GOOD | {"ring": 2.02})
        self.assert_found("step:ring", r"it gains 1\.01x on H100")
        self.edit("the next row is on its way", "no gain: memory is busy")
        self.assert_good()
        self.record_with_gains(GOOD)
        self.assert_found("step:ring", 'its row says "no gain", but it gains 1.25x on H100')

    def test_a_step_in_no_table_that_does_not_help(self):
        self.record_with_gains(GOOD | {"ring": 2.02})
        self.edit("| `ring` | H100 1.01x | a ring | the next row is on its way |\n", "")
        self.assert_found("step:ring", "1.01x on H100, and neither a row")
        self.edit(PROSE, "A ring adds 1.01x<!-- h100_80gb_hbm3 ch07:box ring/wide speedup -->.")
        self.assert_good()

    def test_a_step_that_helps_on_one_card_only(self):
        self.record_with_gains(GOOD | {"ring": 1.9}, hardware="h200", gpu="NVIDIA H200")
        self.edit("the next row", "slower now and then: the next row")
        self.assert_found("step:ring", r"gains 0\.950x on H200.* \"no gain on H200:\"")
        self.edit("slower now and then: the next row", "loses on an H200: the next row")
        self.assert_good()

    def test_a_control_that_has_the_lessons_gain(self):
        self.record(GOOD | {"aligned": 1.91})
        self.assert_found("control:aligned", r"1\.91x of the lesson's 2\.00x on H100")
        self.edit(PROSE, "At 1.91x<!-- h100_80gb_hbm3 ch07:box aligned speedup --> it is not the width.")
        self.assert_good()

    def test_a_control_that_takes_the_baselines_time(self):
        self.record(GOOD | {"aligned": 1.02})
        self.assert_found("control:aligned", "98 % of the baseline's time on H100")
        self.assert_answered("control:aligned")

    def test_a_gain_that_skips_the_step_before(self):
        self.write("chapters/ch07/box.cu", PAIR % {"over": ', .gains_over = "narrow"'})
        self.assertEqual(self.call("--write").returncode, 0)
        self.assertIn("| H100 2.50x, over `narrow` |", (self.root / "chapters/ch07/README.md").read_text())
        self.assert_found("skips:ring", "told over `narrow`, not over `wide`")
        self.edit("the next row", "over `narrow`, the next row")
        self.assert_good()

    def test_a_library_that_is_slower_than_the_baseline(self):
        self.record(GOOD | {"lib": 0.8, "lib_tuned": 0.8})
        self.assert_found("library:lib_tuned", r"0\.800x on H100, slower than the baseline")
        self.edit("91 %, best 114 % of lib_tuned", "")
        self.assert_good()

    def test_a_best_that_loses_to_one_of_its_set(self):
        self.record(GOOD | {"lib_tuned": 2.0})
        self.assert_found("best:lib_tuned", r"0\.952x on H100 as fast as `lib`")
        self.record_with_gains(GOOD | {"ring": 1.9})
        self.edit("the next row", "loses: the next row")
        self.assert_good()
        pair = self.root / "chapters/ch07/box.cu"
        pair.write_text(pair.read_text().replace("&Box::ring>", '&Box::ring>, .best_of = {"narrow", "wide"}'))
        self.assert_found("best:ring", r"0\.950x on H100 as fast as `wide`")

    def test_a_metric_that_says_nothing(self):
        self.record(GOOD, metric=0)
        self.assert_found("metric:faults", "0 faults in all runs")
        self.record(GOOD, metric=3)
        self.assert_good()

    def test_a_sweep_that_nobody_recorded(self):
        self.edit(PROSE, "The sweep changes the width: all variants meet at 8.")
        self.assert_found("sweep", "no sweep of it is recorded")
        self.write("expectations/h200/sweeps/ch07_box.json", self.sweep_of("box"))
        self.assert_good()
        (self.root / "expectations/h200/sweeps/ch07_box.json").unlink()
        self.write("expectations/h200/sweeps/ch07_other.json", self.sweep_of("other"))
        self.edit("the width: all variants meet", "the width. Expect all variants to meet")
        self.assert_good()

    def test_other_words_for_a_sweep(self):
        self.edit(PROSE, "Swept over the width, all variants meet at 8.")
        self.assert_found("sweep", "no sweep of it is recorded")

    def test_a_pair_that_no_gain_was_expected_of(self):
        self.write("chapters/expected-gains.tsv", "target\tmin_speedup\texpected_gain\n")
        self.assert_found("gain", "has no line for it")

    def test_a_gain_that_nobody_expected(self):
        self.write("chapters/expected-gains.tsv", "target\tmin_speedup\texpected_gain\nch07:box\t0.9\t\n")
        self.assert_found("gain", r"2\.00x on H100, where 0\.900x was expected")
        self.assert_answered("gain")

    def test_a_column_of_gains_out_of_date(self):
        self.edit("H100 1.25x", "H100 1.35x")
        self.assert_found("gains", "--write writes it")
        self.assertEqual(self.call("--write").returncode, 0)
        self.assertEqual((self.root / "chapters/ch07/README.md").read_text(), README)
        self.edit("the next row is on its way", "`a \\| b` is on its way")
        self.assertEqual(self.call("--write").returncode, 0)
        self.edit("`a \\| b` is on its way", "the next row is on its way")
        self.assertEqual((self.root / "chapters/ch07/README.md").read_text(), README)
        self.edit("| step | gain over the step before |", "| step |")
        self.edit("| --- | --- | --- | --- |\n| `wide` | H100 2.00x |", "| --- | --- | --- |\n| `wide` |")
        self.edit("| `ring` | H100 1.25x |", "| `ring` |")
        self.assertEqual(self.call("--write").returncode, 0)
        self.assertEqual((self.root / "chapters/ch07/README.md").read_text(), README)

    def test_steps_that_a_function_makes(self):
        pair = (PAIR % {"over": ""}).replace('{.name = "ring", .run = call<&Box::ring>}', 'ours<call<&Box::ring>, call<&Box::plan>>("ring")')
        pair = pair.replace('.name = "wide"', ".name = widest").replace('.lesson = "wide"', '.lesson = widest')
        self.write("chapters/ch07/box.cu", 'constexpr std::string_view widest = "wide";\n' + pair)
        self.assert_good()
        self.write("chapters/ch07/box.cu", pair)
        ended = self.call()
        self.assertEqual((ended.returncode, len(ended.stderr.splitlines())), (2, 1))
        self.assertIn("the name of a step is no text", ended.stderr)

    def test_a_baseline_that_a_function_makes(self):
        pair = (PAIR % {"over": ""}).replace('{.name = "narrow", .run = call<&Box::narrow>}', 'ours<Keep::nothing, true>("narrow")')
        self.write("chapters/ch07/box.cu", pair)
        self.assert_good()

    def test_figures_of_an_older_record(self):
        self.record_with_gains(GOOD, hardware="h200", gpu="NVIDIA H200")
        self.edit("| box | H100 |", "| box | H200 (**stale**) |")
        self.edit(PROSE, "It gains 2.00x<!-- h100_80gb_hbm3 ch07:box wide speedup -->.")
        self.assertEqual(self.call("--write").returncode, 0)
        self.assert_good()
        self.edit("h100_80gb_hbm3 ch07:box", "h200 ch07:box")
        self.assert_found("stale", "figures of H200 are quoted")
        self.edit("speedup -->.", "speedup --> with the code before.<!-- answers ch07:box stale -->")
        self.assert_good()
        self.edit("| box | H200 (**stale**) |", "| box | H200 |")
        self.assertEqual(self.call("--write").returncode, 0)
        self.assertIn("its record is of its present code again", self.call().stdout)

    def test_an_answer_to_nothing(self):
        self.edit(PROSE, "Some words for it.<!-- answers ch07:box control:align -->")
        self.assert_found("answers", "nothing is called control:align there")
        self.edit("Some words for it.<!-- answers ch07:box control:align -->", f"{PROSE}\n\n<!-- answers ch07:box lesson:wide -->")
        ended = self.call()
        self.assertIn("ends no sentence that could answer", ended.stdout)

    def test_what_is_not_recorded_or_stale_is_not_held_to_it(self):
        self.record(GOOD | {"wide": 1.0, "ring": 1.0, "aligned": 1.0})
        self.edit("| box | H100 |", "| box | H100 (**stale**) |")
        self.assertEqual(self.call("--write").returncode, 0)
        self.assert_good()
        self.assertIn("| `wide` | not measured yet |", (self.root / "chapters/ch07/README.md").read_text())

    def test_open_findings_pass_until_they_are_settled(self):
        self.record(GOOD | {"aligned": 1.02})
        self.write("chapters/open-findings.tsv", "target\tfinding\treason\nch07:box\tcontrol:aligned\tits data must change\n")
        self.assert_good()
        self.record(GOOD)
        ended = self.call()
        self.assertEqual(ended.returncode, 1)
        self.assertIn("open-findings.tsv:2: ch07:box: control:aligned: nothing is found any more", ended.stdout)
        self.write("chapters/open-findings.tsv", "target\tfinding\treason\nch07:box\tcontrol:aligned\t\n")
        ended = self.call()
        self.assertEqual((ended.returncode, len(ended.stderr.splitlines())), (2, 1))

    def test_wrong_usage_is_one_line(self):
        ended = self.call("ch08")
        self.assertEqual((ended.returncode, len(ended.stderr.splitlines())), (2, 1))
        self.assertIn("ch08: neither an option nor a chapter", ended.stderr)

    def test_open_findings_of_the_tree_only_become_fewer(self):
        rows = (SOURCE / "chapters/open-findings.tsv").read_text().splitlines()[1:]
        self.assertEqual(len(rows), MOST_OPEN, "settle a finding instead of listing it; lower MOST_OPEN with each that is settled")


if __name__ == "__main__":
    unittest.main()
