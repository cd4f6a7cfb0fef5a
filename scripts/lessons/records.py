# SPDX-License-Identifier: Apache-2.0
"""Recorded results of pairs: medians over runs of the latest code, as aisp report --chapter-tables has them."""
import json
import math
import statistics
from dataclasses import dataclass, field


@dataclass
class Record:
    """A pair on one kind of hardware. The baseline is a variant too, once as fast as itself."""
    hardware: str
    card: str       # for a reader: "H100" of an NVIDIA H100 80GB HBM3
    baseline: str
    judged_by: str
    speedups: dict = field(default_factory=dict)
    roles: dict = field(default_factory=dict)
    metrics: dict = field(default_factory=dict)  # of a metric: its values by variant, with their unit

    def gain(self, variant, over):
        if variant in self.speedups and over in self.speedups:
            return self.speedups[variant] / self.speedups[over]
        return None

    def named(self, role):
        return sorted(name for name, of in self.roles.items() if of == role)


def median_ratio(values):
    """As evidence::expected_of_runs has it: of logarithms."""
    return math.exp(statistics.median(map(math.log, values))) if min(values) > 0 else values[-1]


def card_of(hardware, gpu):
    if not gpu or "_mig" in hardware:
        return hardware
    words = []
    for word in gpu.split():
        if word.endswith("GB"):
            break
        if word != "NVIDIA":
            words.append(word)
    number = hardware.split("x_")[0]
    return (f"{number}x " if number.isdigit() and "x_" in hardware else "") + " ".join(words)


def read_record(hardware, machines, entry):
    latest = entry["runs"][-1]
    runs = [run for run in entry["runs"] if run["source_digest"] == latest["source_digest"]]
    if entry.get("host_decides"):
        runs = [run for run in runs if run["machine"] == latest["machine"]]
    gpu = machines.get(latest["machine"], {}).get("gpu", "")
    record = Record(hardware, card_of(hardware, gpu), entry["baseline"], entry.get("judged_by", "time"))
    record.speedups[entry["baseline"]] = 1.0
    record.roles = {name: variant["role"] for name, variant in entry["variants"].items()}
    for name in entry["variants"]:
        values = [run["variants"][name]["speedup"] for run in runs if name in run["variants"]]
        if values:
            record.speedups[name] = median_ratio(values)
    for run in runs:
        for name, metrics in [(entry["baseline"], run.get("baseline_metrics", {}))] + [
                (name, variant.get("metrics", {})) for name, variant in run["variants"].items()]:
            for metric, value in metrics.items():
                record.metrics.setdefault(metric, []).append((name, value["value"], value.get("unit", "")))
    return record


def read_records(root):
    """By target, one of each kind of hardware."""
    found = {}
    for path in sorted((root / "expectations").glob("*/ch??.json")):
        data = json.loads(path.read_text())
        for name, entry in data["pairs"].items():
            found.setdefault(f"{data['chapter']}:{name}", []).append(
                read_record(data["hardware"], data.get("machines", {}), entry))
    return found


def read_sweeps(root):
    """Targets that have a recorded sweep."""
    return {json.loads(path.read_text())["target"] for path in (root / "expectations").glob("*/sweeps/*.json")}


def significant(value):
    """As base::significant has it: three digits, 10.0 for 9.996."""
    if value == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    rounded = round(value, decimals)
    return f"{value:.{min(decimals, max(0, 2 - math.floor(math.log10(abs(rounded)))))}f}"
