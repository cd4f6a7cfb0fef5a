# SPDX-License-Identifier: Apache-2.0
"""Everything aisp writes as JSON, against docs/schema; its files and CSV columns, against docs/report-formats.md."""
import copy
import csv
import json
import os
import re
import unittest

from harness import AISP, SOURCE, EndToEnd
from schemas import PAGE, load, mistakes, section


class RealOutput(EndToEnd):
    def assert_valid(self, value, name, part=None):
        self.assertEqual(mistakes(value, name, part), [])

    def read(self, path, name):
        value = json.loads(path.read_text())
        self.assert_valid(value, name)
        return value

    def validate_folder(self, folder):
        """Every file of a run, each by its own schema; returns the suite."""
        suite = self.read(folder / "benchmark_test_results.json", "suite")
        manifest = self.read(folder / "manifest.json", "manifest")
        configuration = self.read(folder / "effective_configuration.json", "configuration")
        lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
        for line in lines:
            self.assert_valid(line, "results-log")
        self.assertEqual({file["run_id"] for file in (suite, manifest, lines[0])}, {folder.name})
        self.assertEqual(manifest["targets"], configuration["targets"])
        self.assertEqual(manifest["targets"], [pair["target"] for pair in suite["pairs"]])
        self.assertEqual({entry["name"] for entry in manifest["configuration"]}, set(configuration) - {"pairs", "schema_version", "targets"})
        by_target = {line["target"]: line for line in lines[1:]}
        for pair in suite["pairs"]:
            if pair["target"] in by_target:
                own = self.read(folder / pair["target"].replace(":", "_") / "results/benchmark_test_results.json", "result")
                self.assertEqual(own, pair)
                self.assertEqual(by_target[pair["target"]], pair)
        self.assert_files_are_documented(folder)
        self.assert_csv(folder, suite)
        return suite

    def assert_files_are_documented(self, folder):
        files = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
        names = {re.sub("^ch[0-9]{2}_[a-z0-9_]+/", "CHAPTER_NAME/", re.sub("[a-z0-9_]+[.]trace[.]json$", "VARIANT.trace.json", file)) for file in files}
        self.assertEqual(names - set(re.findall(r"(?m)^\| `([^`]+)` \|", PAGE.read_text())), set())

    def assert_csv(self, folder, suite):
        with open(folder / "results.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        columns = re.findall(r"(?m)^\| `([a-z0-9_]+)` \|", section("results.csv"))
        self.assertEqual((folder / "results.csv").read_text().splitlines()[0].split(","), columns)
        timed = [(pair["target"], variant["name"]) for pair in suite["pairs"] for variant in pair["variants"]]
        self.assertEqual([row for row in ((row["target"], row["variant"]) for row in rows) if row[1]], timed)
        self.assertEqual([row["target"] for row in rows if not row["variant"]], [pair["target"] for pair in suite["pairs"] if not pair["variants"]])
        for row in rows:
            self.assertNotIn(None, row)

    def test_every_way_to_end(self):
        finished = self.run_pairs(
            "ch90", "ch91:hang_in_verify", "ch92:segfault,ch92:throw_in_run,ch92:killed,ch92:exit_well",
            "ch93:garbage_on_pipe,ch93:fork_children",
            "ch94:wrong_result,ch94:nan_output,ch94:stale_output,ch94:lower_precision", "ch95",
            flags=("--timeout-multiplier", "0.05", "--percentiles", "99.9", "--tpot-target-ms", "5", "--profile", "minimal", "--json", "out.json"),
            env={"MY_TOKEN": "hidden", "NVIDIA_API_KEY": "hidden", "AISP_CI_TOKEN": "hidden", "OMP_NUM_THREADS": "1"})
        self.assert_code(finished, 1)
        suite = self.validate_folder(finished.folder)
        self.assertEqual(self.read(self.work / "out.json", "suite"), suite)
        self.assertEqual({pair["status"] for pair in suite["pairs"]}, {"passed", "failed", "timeout", "crashed", "skipped"})
        variants = [variant for pair in suite["pairs"] for variant in pair["variants"]]
        # Otherwise what the schema says of these parts was not looked at.
        for part in set(load("result")["$defs"]["variant"]["properties"]) - {"floor", "gpu_busy_ms", "energy", "counters", "nsys_report"}:  # of GPU pairs only
            self.assertTrue(any(part in variant for variant in variants), part)
        self.assertEqual({variant["status"] for variant in variants}, {"passed", "failed", "skipped"})
        self.assertEqual({v["speedup"]["verdict"] for v in variants if "speedup" in v} - {"cannot_tell"}, {"faster", "slower"})
        self.assertTrue(all(v["timing"]["percentiles_ms"] for v in variants if "timing" in v))
        environment = json.loads((finished.folder / "manifest.json").read_text())["environment"]
        self.assertEqual(environment["OMP_NUM_THREADS"], "1")
        self.assertEqual(environment["NVIDIA_API_KEY"], "(set)")
        self.assertNotIn("hidden", (finished.folder / "manifest.json").read_text())

    def test_modes_and_single_samples(self):
        for i, flags in enumerate((("--mode", "kernel"), ("--mode", "do_bench"), ("--mode", "timer", "--no-alternate"),
                                   ("--in-process", "--cold-start"),
                                   ("--fixed-iterations", "--iterations", "1", "--warmup", "0", "--scale", "0.01"))):
            with self.subTest(flags):
                # Not run_pairs, whose own --iterations would come twice.
                finished = self.call("run", "-t", "ch90:good,ch90:tokens", "--budget", "0.2s", "--run-id", f"run{i}", *flags)
                self.assert_code(finished, 0)
                self.validate_folder(self.artifacts / f"run{i}")

    def test_times_of_many_tokens_are_no_leak(self):
        finished = self.run_pairs("ch90:tokens", flags=("--size", "requests=8000"))
        self.assertEqual(finished.pair("ch90:tokens")["status"], "passed", finished.out)

    def test_run_out_of_time_and_its_continuation(self):
        targets = ("ch90:equal", "ch90:good")
        # Alone, so that it has begun on a slow machine too.
        first = self.run_pairs("ch91:hang_in_verify", flags=("--suite-timeout", "10s" if "AISP_SANITIZED" in os.environ else "2s", "--run-id", "late"))
        self.assert_code(first, 1)
        (pair,) = self.validate_folder(first.folder)["pairs"]
        self.assertEqual((pair["status"], pair["timeout_stage"]), ("timeout", "suite"))
        none = self.run_pairs(*targets, flags=("--suite-timeout", "0.001s", "--run-id", "none"))
        self.assert_code(none, 1)
        self.assertTrue(any(not pair["complete"] for pair in self.validate_folder(self.artifacts / "none")["pairs"]))
        again = self.call("run", "--resume", "none", "--suite-timeout", "1h")
        self.assert_code(again, 0)
        self.assertEqual([pair["status"] for pair in self.validate_folder(self.artifacts / "none")["pairs"]], ["passed", "passed"])

    def test_verify(self):
        finished = self.call("verify", "-t", "ch90:good,ch94:wrong_result,ch95:gpu_only", "--json", "-")
        self.assert_code(finished, 1)
        suite = json.loads(finished.out)
        self.assert_valid(suite, "suite")
        self.assertEqual(self.validate_folder(finished.folder), suite)
        self.assertFalse([variant for pair in suite["pairs"] for variant in pair["variants"] if "timing" in variant])

    def test_lists(self):
        for arguments in (("list-targets", "--json"), ("run", "--list", "--json", "-")):
            # `run` refuses the fixtures that are declared wrongly.
            for program in ({"program": AISP},) if "run" in arguments else ({}, {"program": AISP}):
                targets = json.loads(self.call(*arguments, **program).out)
                self.assert_valid(targets, "targets")
                self.assertEqual(len({target["target"] for target in targets}), len(targets))

    def test_doctor(self):
        finished = self.call("doctor", "--json")
        report = json.loads(finished.out)
        self.assert_valid(report, "doctor")
        self.assert_code(finished, 4 if report["worst"] == "problem" else 0)
        levels = ["ok", "info", "warning", "problem"]
        self.assertEqual(report["worst"], max((finding["level"] for finding in report["findings"]), key=levels.index))

    def test_topology(self):
        finished = self.call("doctor", "--topology", "--json")
        self.assert_code(finished, 0)
        topology = json.loads(finished.out)
        self.assert_valid(topology, "topology")
        self.assertTrue(topology["gpus"] or "GPUs" in [unknown["what"] for unknown in topology["unknown"]])
        doctor = json.loads(self.call("doctor", "--json").out)["machine"]
        self.assertEqual([gpu["uuid"] for gpu in topology["gpus"]], [gpu["uuid"] for gpu in doctor["gpus"]])

    def test_peak(self):
        report = json.loads(self.call("peak", "--quick", "--json", env={"CUDA_VISIBLE_DEVICES": ""}).out)
        self.assert_valid(report, "peak")
        self.assertGreater(len(report["host"]["record"]["figures"]), 0)

    def test_specs(self):
        specs = json.loads(self.call("specs", "--json").out)
        self.assert_valid(specs, "specs")
        for gpu in specs["gpus"]:
            stated = {name for name, value in gpu.items() if isinstance(value, (int, float)) and not name.startswith("ridge")}
            self.assertEqual(set(gpu["sources"]), stated, gpu["key"])
        h100 = json.loads(self.call("specs", "h100-sxm", "--json").out)["gpus"]
        self.assertEqual([round(gpu["ridge_bf16_flop_per_byte"]) for gpu in h100], [295])

    def test_estimate(self):
        for arguments in ((), ("--tokens-per-second", "5000"), ("--dtype", "fp4", "--context", "1", "--gpus", "3")):
            for model in ("llama-3-8b", "mixtral-8x7b", "deepseek-v3"):
                self.assert_valid(json.loads(self.call("estimate", "--model", model, *arguments, "--json").out), "estimate")

    def test_recorded_expectations(self):
        finished = self.run_pairs("ch90:good", flags=("--update-expectations", "--expectations-dir", "recorded"))
        self.assert_code(finished, 0)
        file = self.read(self.work / "recorded/host/ch90.json", "expectations")
        self.assertEqual({name: variant["role"] for name, variant in file["pairs"]["good"]["variants"].items()},
                         {"doubled": "optimized", "added": "optimized", "library": "library"})
        (machine,) = file["machines"].values()
        manifest = json.loads((finished.folder / "manifest.json").read_text())
        self.assertEqual((machine["cpus_usable"], machine["numa_nodes"], machine["hypervisor"]),
                         (manifest["cpus_usable"], manifest["numa_nodes"], manifest["virtualization"]))
        self.assertTrue(file["pairs"]["good"]["host_decides"])

    def test_analysis_comparison_and_history(self):
        self.assert_code(self.run_pairs("ch90:good,ch90:tokens", flags=("--run-id", "a", "--update-expectations")), 0)
        self.run_pairs("ch90:good,ch90:tokens,ch94:wrong_result,ch95:gpu_only", flags=("--run-id", "b"))
        for name, arguments in (("analysis", ("analyze", "b")), ("comparison", ("compare", "a", "b")), ("comparison", ("compare", "b")),
                                ("comparison", ("compare", "a", "b", "a")),
                                ("history", ("analyze", "--history"))):
            with self.subTest(arguments):
                value = json.loads(self.call(*arguments, "--json", "-").out)
                self.assert_valid(value, name)
                self.assertTrue(value.get("rows") or value.get("metrics") or value.get("series") or value.get("comparisons"))

    def test_sample_of_a_gpu_run(self):
        # Its other pairs contradict themselves on purpose.
        passed = json.loads((SOURCE / "tests/report/golden/suite.json").read_text())["pairs"][0]
        self.assertTrue(passed["gpu_states"])
        self.assertTrue(any("floor" in variant for variant in passed["variants"]))
        self.assert_valid(passed, "result")

    def test_real_gpu_run(self):
        gpus = json.loads(self.call("doctor", "--json").out)["machine"]["gpus"]
        if not gpus:
            self.skipTest("no GPU")
        targets = json.loads(self.call("list-targets", "--json", program=AISP).out)
        fit = [target["target"] for target in targets if target["gpus"] == 1 and target["min_sm"] <= gpus[0]["sm"]]
        finished = self.run_pairs(fit[0], flags=("--scale", "0.05"), program=AISP)
        pair = self.validate_folder(finished.folder)["pairs"][0]
        self.assertTrue(pair["gpus"] and pair["gpu_states"], pair["reason"])


class Refusals(EndToEnd):
    """The schemas can say no: each change to a real result is found, at its place."""

    def changed(self, value, place, new):
        """`value` with `new` at the place; the ellipsis takes out what is there."""
        value = copy.deepcopy(value)
        *way, last = place
        inner = value
        for step in way:
            inner = inner[step]
        if new is ...:
            del inner[last]
        else:
            inner[last] = new
        return value

    def assert_refused(self, value, name, place, new, word):
        with self.subTest(schema=name, place=place, new=new):
            found = mistakes(self.changed(value, place, new), name)
            self.assertTrue(found, "the schema accepts it")
            self.assertIn(word, " ".join(found))

    def test_results(self):
        finished = self.run_pairs("ch90:good", "ch94:wrong_result", "ch95:gpu_only", "ch92:segfault")
        good, failed = finished.pair("ch90:good"), finished.pair("ch94:wrong_result")
        crashed = finished.pair("ch92:segfault")
        for pair in (good, failed, crashed):
            self.assertEqual(mistakes(pair, "result"), [])
        for place, new, word in (
                (("wall_s",), "1.5", "'1.5' is not of type 'number'"), (("seed",), 4.5, "'integer'"), (("complete",), "yes", "'boolean'"),
                (("speed",), 3, "'speed' was unexpected"), (("variants", 1, "timing", "median"), 3, "'median' was unexpected"),
                (("variants", 0, "memory", "peak"), 3, "'peak' was unexpected"), (("status",), "ok", "'ok' is not one of"),
                (("status",), ..., "'status' is a required"),
                (("variants", 1, "speedup", "verdict"), "cannot tell", "is not one of"),
                (("variants", 1, "speedup", "low"), ..., "'low' is a required"),
                (("variants", 1, "role"), "baseline", "False schema"), (("variants", 0, "role"), "library", "'baseline' was expected"),
                (("variants", 1, "timing", "mean_ms"), None, "None is not of type"), (("variants", 1, "timing", "raw_times_ms"), [], "[]"),
                (("variants", 1, "output_digests", "output 1"), "xyz", "does not match"), (("target",), "good", "does not match"),
                (("schema_version",), 2, "1 was expected"), (("watchdog", "lunch"), {}, "lunch"), (("status",), "failed", "''"),
                (("variants",), [], "[]"), (("cache",), "cold", "'none' was expected"), (("start",), "released", "'none' was expected"),
                (("variants", 0, "accuracy", "samples"), 0, "0 is less than"), (("timeout_stage",), "verify", "'' was expected")):
            self.assert_refused(good, "result", place, new, word)
        self.assert_refused(failed, "result", ("variants", 1, "speedup"), good["variants"][1]["speedup"], "False schema")
        self.assert_refused(failed, "result", ("best",), "doubled", "'' was expected")
        self.assert_refused(failed, "result", ("errors", 0, "stage"), "somewhere", "is not one of")
        self.assert_refused(crashed, "result", ("complete",), True, "False was expected")

        folder = finished.folder
        suite = json.loads((folder / "benchmark_test_results.json").read_text())
        self.assert_refused(suite, "suite", ("pairs", 0, "extra"), 1, "'extra' was unexpected")
        self.assert_refused(suite, "suite", ("pairs",), {}, "'array'")
        header = json.loads((folder / "results.jsonl").read_text().splitlines()[0])
        self.assert_refused(header, "results-log", ("kind",), "notes", "not valid under any")
        manifest = json.loads((folder / "manifest.json").read_text())
        self.assert_refused(manifest, "manifest", ("environment", "AWS_SECRET_ACCESS_KEY"), "x", "AWS_SECRET")
        self.assert_refused(manifest, "manifest", ("memory_bytes",), "25 GB", "'integer'")
        configuration = json.loads((folder / "effective_configuration.json").read_text())
        self.assert_refused(configuration, "configuration", ("seed", "value"), "8", "'integer'")
        self.assert_refused(configuration, "configuration", ("iteratons",), {"value": 1, "origin": "flag"}, "unexpected")

    def test_expectations(self):
        self.run_pairs("ch90:good", flags=("--update-expectations",))
        recorded = json.loads((self.work / "expectations/host/ch90.json").read_text())
        good = ("pairs", "good")
        run, machine = (*good, "runs", 0), next(iter(recorded["machines"]))
        for place, new, word in (((*run, "source_digest"), "abc", "does not match"), ((*good, "runs"), [], "[]"),
                                 ((*run, "variants", "doubled", "speedup"), 0, "less than or equal"), ((*run, "machine"), "here", "does not match"),
                                 (("machines", machine, "cpus_usable"), "many", "'integer'"), (("schema_version",), 2, "3 was expected"),
                                 ((*good, "lesson"), ..., "'lesson' is a required"),
                                 ((*good, "variants", "doubled", "role"), "baseline", "is not one of"),
                                 ((*good, "variants", "doubled", "cost", "math"), "fp12", "is not one of"),
                                 ((*good, "baseline_cost", "bytes_of"), "paper", "is not one of"), ((*good, "bound"), "luck", "is not one of"),
                                 ((*good, "ceilings"), {"memory_bytes_s": -1, "flops_s": {}, "source": "x"}, "less than"),
                                 ((*good, "note"), "", "unexpected"), (("chapter",), ..., "'chapter' is a required")):
            self.assert_refused(recorded, "expectations", place, new, word)

    def test_lists_and_doctor(self):
        targets = json.loads(self.call("list-targets", "--json").out)
        self.assert_refused(targets, "targets", (0, "device"), "tpu", "is not one of")
        self.assert_refused(targets, "targets", (0, "optimized"), [], "[]")
        self.assert_refused(targets, "targets", (0, "author"), "me", "'author' was unexpected")
        doctor = json.loads(self.call("doctor", "--json").out)
        self.assert_refused(doctor, "doctor", ("findings", 0, "level"), "fine", "is not one of")
        self.assert_refused(doctor, "doctor", ("machine", "host", "memory_bytes"), None, "'integer'")
        topology = json.loads(self.call("doctor", "--topology", "--json").out)
        self.assert_refused(topology, "topology", ("unknown",), [{"what": "GPCs", "why": ""}], "''")
        self.assert_refused(topology, "topology", ("gpus",), [{"ordinal": 0}], "required")
        warning = {"name": "disk", "level": "warning", "what": "full", "advice": ""}
        self.assert_refused(doctor, "doctor", ("findings", 0), warning, "''")

    def test_specs_and_estimate(self):
        specs = json.loads(self.call("specs", "--json").out)
        self.assert_refused(specs, "specs", ("gpus", 0, "memory_bytes"), None, "'number'")
        self.assert_refused(specs, "specs", ("gpus", 0, "sources", "tdp_w"), ..., "'tdp_w' is a required")
        self.assert_refused(specs, "specs", ("gpus", 0, "fp3_flop_s"), 1, "unexpected")
        estimate = json.loads(self.call("estimate", "--model", "llama-3-8b", "--json").out)
        self.assert_refused(estimate, "estimate", ("decode", "bound"), "network", "is not one of")
        self.assert_refused(estimate, "estimate", ("memory", "weights_bytes"), "16 GB", "'number'")


if __name__ == "__main__":
    unittest.main()
