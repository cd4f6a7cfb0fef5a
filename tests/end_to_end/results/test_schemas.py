# SPDX-License-Identifier: Apache-2.0
"""docs/schema itself, and its fields and examples against docs/report-formats.md."""
import json
import re
import unittest

from harness import SOURCE, EndToEnd
from schemas import NAMES, PAGE, SCHEMAS, Draft202012Validator, load, mistakes, section

UNIT = re.compile(r"(_(ms|us|ns|s|cycles|seconds|bytes|bits|mhz|khz|w|j|c|percent|l2|flop_per_byte|per_second)|^(milliseconds|percent|bytes|flops))$")
# Counts, ratios, identities and what has its unit beside it.
NO_UNIT = {"schema_version", "before_raw", "after_raw", "inputs_drawn", "inputs_checked", "compared", "first_on_inputs", "watched", "wrong",
           "full", "multiple", "least", "most", "seed", "scale", "iterations", "rounds", "requests", "tokens", "good_requests", "all_requests", "outputs_equal", "samples", "mean", "median", "std", "min", "max",
           "exit_status", "measurements", "autocorrelation", "effective_rounds", "days", "before", "after", "p_value",
           "passes", "bank_conflicts", "sectors_per_load", "sectors_per_store", "p25", "p50", "p75", "p90", "p95", "p99", "value", "raw", "low", "high", "speedup", "speedup_low", "speedup_high",
           "percent_of_floor", "runs", "max_error", "limit_max_error", "throttle_reasons",
           "ordinal", "index", "sm", "sm_count", "driver_cuda_version", "runtime_cuda_version", "cpus_online", "cpus_usable", "cpus", "cpu_quota",
           "numa_nodes", "numa_node", "id", "pid", "attributes", "gpus", "min_sm", "max_sm", "compute_mode", "ecc_corrected", "ecc_uncorrected",
           "pcie_generation", "pcie_generation_max", "pcie_width", "pcie_width_max", "generation", "generation_max", "width", "width_max",
           "sockets", "cores", "total", "free", "distances", "level", "ways", "cluster_groups", "unplaced_sms", "threads_per_sm", "warps_per_sm",
           "blocks_per_sm", "threads_per_block", "registers_per_sm", "registers_per_block", "max_cluster_size", "copy_engines", "link", "gpu",
           "performance_rank", "parameters", "active_parameters", "layers", "hidden",
           "heads", "kv_heads", "head_dim", "experts", "experts_per_token", "batch", "context", "prompt", "gpus_needed", "largest_batch",
           "count", "launches", "launch_calls", "gaps", "grid", "grids", "block", "cluster", "registers", "waves", "allocations",
           "selected", "passed", "failed", "timed_out", "crashed", "skipped", "interrupted", "not_started", "faster", "cannot_tell", "slower", "near", "of", "guessed", "slow_libraries", "best", "worst", "variants",
           "kernels", "pairs", "geometric_mean", "tokens_per_second_per_gpu", "voluntary_switches", "involuntary_switches", "minor_faults", "major_faults", "ridge_batch", "ridge_batch_weights_alone", "far_share", "from_gpu", "to_gpu", "usual", "deviations", "mfu", "m", "k", "n"}


def walk(schema, path=""):
    if isinstance(schema, dict):
        yield path, schema
        for key, value in schema.items():
            yield from walk(value, f"{path}/{key}")
    elif isinstance(schema, list):
        for i, value in enumerate(schema):
            yield from walk(value, f"{path}/{i}")


def objects(schema):
    """The schemas of whole objects, without the conditions, which look at parts of them."""
    return ((path, part) for path, part in walk(schema) if part.get("type") == "object" and not path.endswith("/properties"))


def is_number(schema):
    kinds = schema.get("type", ())
    return schema.get("$ref") == "#/$defs/real" or bool({"number", "integer"} & set([kinds] if isinstance(kinds, str) else kinds))


class Schemas(unittest.TestCase):
    def test_there_are_no_others(self):
        self.assertEqual(sorted(path.name for path in SCHEMAS.iterdir()), [f"{name}.schema.json" for name in NAMES])

    def test_they_are_schemas(self):
        for name in NAMES:
            with self.subTest(name):
                self.assertEqual(load(name)["$schema"], Draft202012Validator.META_SCHEMA["$schema"])
                Draft202012Validator.check_schema(load(name))

    def test_all_but_the_bare_arrays_say_their_version(self):
        for name in set(NAMES) - {"targets", "explain"}:
            with self.subTest(name):
                schema = load(name)
                # Some documents have two shapes.
                shapes = [schema["$defs"][schema[branch]["$ref"].split("/")[-1]] for branch in ("then", "else") if branch in schema]
                for part in (schema["$defs"]["header"],) if name == "results-log" else shapes or (schema,):
                    self.assertIn("schema_version", part["required"])
                    self.assertEqual(part["properties"]["schema_version"]["const"], 3 if name == "expectations" else 1)

    def test_objects_are_closed(self):
        for name in NAMES:
            for path, part in objects(load(name)):
                with self.subTest(name + path):
                    self.assertIn("additionalProperties", part)
                    self.assertLessEqual(set(part.get("required", ())), set(part.get("properties", ())))
                    if "properties" in part:
                        self.assertIs(part["additionalProperties"], False)

    def test_numbers_carry_units(self):
        seen = set()
        for name in NAMES:
            if name == "configuration":  # the names of flags
                continue
            for path, part in objects(load(name)):
                for field, schema in part.get("properties", {}).items():
                    if not is_number(schema) and not is_number(schema.get("items", {})):
                        continue
                    seen.add(field)
                    with self.subTest(f"{name}{path}: {field}"):
                        self.assertTrue(UNIT.search(field) or field in NO_UNIT or re.sub("_ms$", "", field) in NO_UNIT)
        self.assertGreater(len(seen), 40)
        self.assertIn("median_ms", seen)


class Shipped(unittest.TestCase):
    def test_records_follow_their_schemas(self):
        for pattern, name in (("*/*.json", "expectations"), ("*/sweeps/*.json", "sweep"), ("*/counters/*.json", "counted")):
            for file in sorted((SOURCE / "expectations").glob(pattern)):
                with self.subTest(str(file.relative_to(SOURCE))):
                    self.assertEqual(mistakes(json.loads(file.read_text()), name), [])


class Page(EndToEnd):
    def test_fields_are_explained(self):
        words = set(re.findall(r"`([^`\n]+)`", PAGE.read_text()))
        for name in NAMES:
            for path, part in objects(load(name)):
                with self.subTest(name + path):
                    self.assertEqual(set(part.get("properties", ())) - words, set())

    def test_examples_are_valid(self):
        examples = re.findall(r"<!-- ([a-z-]+)(?:: ([a-z_]+))? -->\n```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
        self.assertEqual(len(examples), PAGE.read_text().count("```json"), "each example names its schema in a comment before it")
        self.assertGreater(len(examples), 3)
        for name, part, text in examples:
            with self.subTest(f"{name} {part}"):
                self.assertEqual(mistakes(json.loads(text), name, part or None), [])

    def test_exit_statuses_are_those_of_the_help(self):
        said = re.search(r"Exit status: (.*?)\.\s", self.call("--help").out, re.DOTALL)[1]
        documented = re.findall(r"(?m)^\| (\d+) \|", section("Exit status"))
        self.assertEqual(documented, re.findall(r"\b(\d+) [a-z]", said))


if __name__ == "__main__":
    unittest.main()
