# SPDX-License-Identifier: Apache-2.0
"""Records of the folder of expectations as scripts read them: damaged ones are refused by name."""
import json
import pathlib
import tempfile
import unittest

import recorded  # noqa: F401 (finds the scripts)
from records import card_of, read_counter_records, read_folder, read_sweep_records

VARIANT = {"speedup": 2, "speedup_low": 1.9, "speedup_high": 2.1, "median_ms": 1}
HOST = {"cpu": "A", "cpus_usable": 16, "numa_nodes": 1, "hypervisor": "", "memory_bytes": 2**37}


def run(machine="m", source_digest="d", **variant):
    return {"machine": machine, "source_digest": source_digest, "baseline_median_ms": 2, "variants": {"wide": {**VARIANT, **variant}}}


def expectations(*runs, machines=None, **pair):
    return {"schema_version": 3, "hardware": "host", "chapter": "ch07", "machines": machines or {"m": HOST}, "pairs": {"box": {
        "baseline": "narrow", "lesson": "wide", "variants": {"wide": {"role": "optimized"}}, "runs": list(runs), **pair}}}


def sweep(**changes):
    variants = [{"name": "wide", "role": "optimized", "median_ms": 1}]
    return {"schema_version": 1, "hardware": "host", "target": "ch07:box", "lesson": "wide", "source_digest": "d", "recorded": {},
            "points": [{"case": "a", "sizes": {"n": 1}, "variants": variants}], **changes}


class Records(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))

    def box(self, content):
        self.write("host/ch07.json", content)
        (record,) = read_folder(self.folder)
        return record

    def assert_refused(self, read, name, content, says):
        self.write(name, content)
        with self.subTest(says), self.assertRaisesRegex(ValueError, rf"{name}: .*{says}"):
            read(self.folder)

    def test_runs_of_the_latest_code(self):
        record = self.box(expectations(run(speedup=2.05, source_digest="older"), run(median_ms=1), run(median_ms=3), run(median_ms=4)))
        self.assertEqual((len(record.runs), record.variants["wide"].median_ms, record.variants["narrow"].median_ms), (3, 3, 2))
        self.assertEqual(record.best(), "wide")

    def test_where_the_host_decides_runs_of_the_kind_with_most(self):
        machines = {"m": HOST, "alike": {**HOST, "memory_bytes": 2**37 * 0.97}, "other": {**HOST, "cpus_usable": 8}}
        runs = run("m"), run("alike"), run("other", median_ms=5)
        self.assertEqual(self.box(expectations(*runs, machines=machines, host_decides=True)).variants["wide"].median_ms, 1)
        self.assertEqual(self.box(expectations(*reversed(runs), machines=machines, host_decides=True)).variants["wide"].median_ms, 1)
        of_two = self.box(expectations(run("m"), run("other", median_ms=5), machines=machines, host_decides=True))
        self.assertEqual(of_two.variants["wide"].median_ms, 5, "the later of two")
        self.assertEqual(len(self.box(expectations(*runs, machines=machines)).runs), 3)

    def test_a_run_far_from_four_others_says_nothing_of_further_ones(self):
        def high(last):
            runs = [run(speedup=value, speedup_low=value, speedup_high=value) for value in (2, 2.01, 2.02, 2, last)]
            return self.box(expectations(*runs)).variants["wide"].high
        self.assertLess(high(8), 2.1)
        self.assertGreater(high(2.2), 2.1)

    def test_the_lower_bound_is_that_of_the_best_ceiling(self):
        record = self.box(expectations(run(percent_of_floor=50), run(percent_of_floor=40), run()))
        self.assertAlmostEqual(record.variants["wide"].percent_of_floor, 40)

    def test_damaged_expectations(self):
        for content, says in (("", "Expecting value"), ("{", "Expecting"), ({"pairs": {}}, "it has no schema_version"),
                              ({**expectations(run()), "schema_version": 2}, "schema_version 2 is not 3"),
                              ({**expectations(run()), "chapter": "ch08"}, "it says that it is of host ch08"),
                              (expectations(), "no runs"), (expectations(run("elsewhere")), "not among the file's"),
                              (expectations(run(speedup=3)), "the speedup of box wide is none"),
                              (expectations(run(median_ms=-1)), "no time of wide"), (expectations(run(median_ms=float("nan"))), "no time of wide"),
                              ("[" * 100000, "recursion")):
            self.assert_refused(read_folder, "host/ch07.json", content, says)

    def test_damaged_sweeps_and_counters(self):
        points = sweep()["points"]
        for changes, says in (({"schema_version": 2}, "record it again"), ({"hardware": "h200"}, "move it to its place"),
                              ({"points": points + [{**points[0], "case": "b", "sizes": {"m": 1}}]}, "b has other sizes than a"),
                              ({"points": [{**points[0], "variants": [{"name": "wide", "median_ms": -1}]}]}, "what no measurement gives")):
            self.assert_refused(read_sweep_records, "host/sweeps/ch07_box.json", sweep(**changes), says)
        counters = sweep()
        del counters["lesson"]
        self.assert_refused(read_counter_records, "host/counters/ch07_box.json", counters, "it has no lesson")

    def test_names_of_cards(self):
        for hardware, gpu, card in (("h100_80gb_hbm3", "NVIDIA H100 80GB HBM3", "H100"), ("2x_h200", "NVIDIA H200", "2x H200"), ("host", "", "host"),
                                    ("h100_80gb_hbm3_mig_1g_10gb", "NVIDIA H100 80GB HBM3", "h100_80gb_hbm3_mig_1g_10gb")):
            self.assertEqual(card_of(hardware, gpu), card)


if __name__ == "__main__":
    unittest.main()
