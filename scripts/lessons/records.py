# SPDX-License-Identifier: Apache-2.0
"""Records of pairs in the folder of expectations: runs, with what follows from them as aisp has it (src/evidence/expectations), sweeps and
hardware counters."""
import json
import math
import statistics
from dataclasses import dataclass, field

EXPECTATIONS_VERSION = 3
SWEEP_VERSION = COUNTED_VERSION = 1
FEWEST_RUNS_FOR_AN_INTERVAL = 5
WIDEST_RATIO = 1.5          # ends this far apart, as a ratio, say nothing that a reader could rely on
HALF_INTERVAL = 1.96        # of a 95 % interval, in standard deviations
TELLING_MEMORY_CHANGE = 0.05  # equal machines differ in the memory that kernels and firmware reserve


@dataclass
class Metric:
    value: float
    unit: str = ""


@dataclass
class Variant:
    role: str = "optimized"
    speedup: float = 1.0    # the median of the runs, and the interval that further runs fall into
    low: float = 1.0
    high: float = 1.0
    median_ms: float = 0.0
    percent_of_floor: float = None
    metrics: dict = field(default_factory=dict)    # medians of the runs that have them
    cost: dict = field(default_factory=dict)
    speedups: list = field(default_factory=list)   # of each run, the latest last
    medians_ms: list = field(default_factory=list)

    def shown_range(self):
        """The interval of further runs; of fewer than five, the least and the greatest."""
        if len(self.speedups) < FEWEST_RUNS_FOR_AN_INTERVAL:
            return min(self.speedups + [self.speedup]), max(self.speedups + [self.speedup])
        return self.low, self.high

    def is_steady(self):
        return is_near(*self.shown_range())


@dataclass
class Record:
    """A pair on one kind of hardware. The baseline is a variant too, once as fast as itself."""
    hardware: str
    chapter: str
    name: str
    baseline: str
    lesson: str
    judged_by: str
    bound: str
    ceilings: dict
    runs: list          # those that it follows from: of the latest code, and of one kind of host where the host decides
    machine: dict       # of the latest of them
    variants: dict      # by name, the baseline among them

    @property
    def latest(self):
        return self.runs[-1]

    @property
    def source_digest(self):
        return self.latest["source_digest"]

    @property
    def card(self):
        return card_of(self.hardware, self.machine.get("gpu", ""))

    @property
    def speedups(self):
        return {name: variant.speedup for name, variant in self.variants.items()}

    @property
    def metrics(self):
        """By metric: (variant, value, unit) of each run."""
        found = {}
        for run in self.runs:
            for name, metrics in [(self.baseline, run.get("baseline_metrics", {}))] + [
                    (name, variant.get("metrics", {})) for name, variant in run["variants"].items()]:
                for metric, value in metrics.items():
                    found.setdefault(metric, []).append((name, value["value"], value.get("unit", "")))
        return found

    def gain(self, variant, over):
        if variant in self.variants and over in self.variants:
            return self.variants[variant].speedup / self.variants[over].speedup
        return None

    def named(self, role):
        return [name for name, variant in self.variants.items() if variant.role == role]

    def best(self):
        """The optimized variant with the largest speedup, the lesson where it reaches the same; empty where there is none."""
        steps = self.named("optimized")
        most = max((self.variants[name].speedup for name in steps), default=0)
        best = [name for name in steps if self.variants[name].speedup == most]
        return self.lesson if self.lesson in best else best[0] if best else ""


def is_near(low, high):
    return low > 0 and high < WIDEST_RATIO * low


def card_of(hardware, gpu):
    """For a reader: "2x H100" of two NVIDIA H100 80GB HBM3; a part of a GPU keeps its key."""
    if not gpu or "_mig" in hardware:
        return hardware
    words = []
    for word in gpu.split():
        if word.endswith("GB"):
            break
        if word != "NVIDIA":
            words.append(word)
    number, several, _ = hardware.partition("x_")
    return (f"{number}x " if several and number.isdigit() else "") + " ".join(words) if words else hardware


def quantile(z, first, degrees):
    """Student's t: `z` is the quantile of the normal distribution, `first` those of one to three degrees (Abramowitz, Stegun, 26.7.5)."""
    if degrees <= 3:
        return first[max(1, math.floor(degrees)) - 1]
    return (z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
            + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3)
            + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * degrees**4))


# How processes with equal code are taken to differ until runs say otherwise (evidence::ProcessSpread): deviation, degrees, Student's t.
OF_GPU = (0.005, 4, lambda degrees: quantile(1.959964, (12.706, 4.303, 3.182), degrees))
OF_HOST = (0.02, 2, lambda degrees: quantile(2.575829, (63.657, 9.925, 5.841), degrees))


def is_ratio(value, low, high):
    return math.isfinite(value) and math.isfinite(high) and 0 < low <= value <= high


def is_time(milliseconds):
    return 0 <= milliseconds < math.inf


def runs_apart(speedups):
    """Which of four runs or more lie so far from the others that they say nothing of how further runs will differ."""
    none = [False] * len(speedups)
    if len(speedups) < 4:
        return none
    logs = [math.log(value) for value in speedups]
    centre = statistics.median(logs)
    distances = [abs(value - centre) for value in logs]
    limit = max(0.15, 8 * 1.4826 * statistics.median(distances))
    apart = [distance > limit for distance in distances]
    return apart if 3 * sum(apart) <= len(apart) else none


def expected_of_runs(ranges, assumed):
    """(median, low, high): where further runs fall, as evidence::expected_of_runs has it."""
    deviation, degrees, student_t = assumed
    kept = [one for one, apart in zip(ranges, runs_apart([value for value, _, _ in ranges])) if not apart]
    logs = [math.log(value) for value, _, _ in kept]
    within = statistics.median([(math.log(high / low) / 2 / HALF_INTERVAL)**2 for _, low, high in kept])
    mean = sum(logs) / len(logs)
    squares = sum((value - mean)**2 for value in logs)
    all_degrees = degrees + len(logs) - 1
    variance = (degrees * (deviation**2 + within) + squares) / all_degrees
    half = student_t(all_degrees) * math.sqrt(variance * (1 + 1 / len(logs)))
    centre = statistics.median(logs)
    return math.exp(centre), math.exp(centre - half), math.exp(centre + half)


def metric_medians(runs):
    values = {}
    for metrics in runs:
        for name, metric in metrics.items():
            values.setdefault(name, []).append(metric)
    return {name: Metric(statistics.median([metric["value"] for metric in of]), of[-1].get("unit", ""))
            for name, of in sorted(values.items())}


def variant_of(name, runs, assumed, known):
    those = [run["variants"][name] for run in runs if name in run["variants"]]
    value, low, high = expected_of_runs([(one["speedup"], one["speedup_low"], one["speedup_high"]) for one in those], assumed)
    medians = [one["median_ms"] for one in those]
    variant = Variant(known.get("role", "optimized"), value, low, high, statistics.median(medians),
                      metrics=metric_medians([one.get("metrics", {}) for one in those]), cost=known.get("cost", {}),
                      speedups=[one["speedup"] for one in those], medians_ms=medians)
    floors_ms = [one["percent_of_floor"] / 100 * one["median_ms"] for one in those if one.get("percent_of_floor") is not None]
    # Ceilings are measured, and no chip gives more than it can: the best of all runs is the nearest to that.
    if floors_ms and variant.median_ms > 0:
        variant.percent_of_floor = min(floors_ms) / variant.median_ms * 100
    return variant


def same_host(machine, other):
    """Whether times that the host decides may be compared."""
    if machine == other:
        return True
    if min(machine.get("cpus_usable", 0), other.get("cpus_usable", 0)) <= 0:
        return False
    memory = machine.get("memory_bytes", 0), other.get("memory_bytes", 0)
    return max(memory) - min(memory) <= TELLING_MEMORY_CHANGE * max(memory) and all(
        machine.get(key) == other.get(key) for key in ("cpu", "cpus_usable", "numa_nodes", "cpu_quota", "hypervisor"))


def most_recorded(runs, machines):
    """The runs of the kind of host that has most of them, the later of two."""
    best = []
    for run in reversed(runs):
        same = [one for one in runs if same_host(machines[one["machine"]], machines[run["machine"]])]
        best = same if len(same) > len(best) else best
    return best


def record_of(hardware, chapter, name, entry, machines):
    runs = [run for run in entry["runs"] if run["source_digest"] == entry["runs"][-1]["source_digest"]]
    if entry.get("host_decides"):
        runs = most_recorded(runs, machines)
    baseline = Variant("baseline", median_ms=statistics.median([run["baseline_median_ms"] for run in runs]),
                       metrics=metric_medians([run.get("baseline_metrics", {}) for run in runs]), cost=entry.get("baseline_cost", {}),
                       medians_ms=[run["baseline_median_ms"] for run in runs])
    assumed = OF_HOST if entry.get("host_decides") else OF_GPU
    names = {name for run in runs for name in run["variants"]}
    variants = {name: variant_of(name, runs, assumed, entry["variants"].get(name, {})) for name in names}
    variants[entry["baseline"]] = baseline
    return Record(hardware, chapter, name, entry["baseline"], entry["lesson"], entry.get("judged_by", "time"), entry.get("bound", ""),
                  entry.get("ceilings"), runs, machines[runs[-1]["machine"]], dict(sorted(variants.items())))


def check_expectations(data, path):
    if data["schema_version"] != EXPECTATIONS_VERSION:
        raise ValueError(f"schema_version {data['schema_version']} is not {EXPECTATIONS_VERSION}; record it again with aisp run "
                         "--update-expectations")
    if (data["hardware"], data["chapter"]) != (path.parent.name, path.stem):
        raise ValueError(f"it says that it is of {data['hardware']} {data['chapter']}; move it to its place or record it again with "
                         "aisp run --update-expectations")
    for name, entry in data["pairs"].items():
        if not entry["runs"] or not entry["lesson"]:
            raise ValueError(f"{name} has no runs or names no lesson")
        for run in entry["runs"]:
            if run["machine"] not in data["machines"]:
                raise ValueError(f"a run of {name} was on a machine that is not among the file's")
            if not is_time(run["baseline_median_ms"]):
                raise ValueError(f"a run of {name} has no time of the baseline")
            for variant, one in run["variants"].items():
                if not is_time(one["median_ms"]):
                    raise ValueError(f"a run of {name} has no time of {variant}")
                if not is_ratio(one["speedup"], one["speedup_low"], one["speedup_high"]):
                    raise ValueError(f"the speedup of {name} {variant} is none: its interval must be above 0 and hold it")


def read_json(path, check, read):
    """Returns read(content of the file); an error names the file."""
    try:
        data = json.loads(path.read_text())
        check(data, path)
        return read(data)
    except KeyError as error:
        raise ValueError(f"{path}: it has no {error.args[0]}") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: {error}".split("\n")[0]) from error


def read_folder(folder):
    """Every record of the folder of expectations, by hardware, then chapter, then pair."""
    return [record for path in sorted(folder.glob("*/*.json")) for record in read_json(
        path, check_expectations, lambda data: [record_of(data["hardware"], data["chapter"], name, entry, data["machines"])
                                                for name, entry in sorted(data["pairs"].items())])]


def read_records(root):
    """By target, one of each kind of hardware."""
    found = {}
    for record in read_folder(root / "expectations"):
        found.setdefault(f"{record.chapter}:{record.name}", []).append(record)
    return found


def check_points(data):
    for point in data["points"]:
        if point["sizes"].keys() != data["points"][0]["sizes"].keys():
            raise ValueError(f"{point['case']} has other sizes than {data['points'][0]['case']}")
        for variant in point["variants"]:
            positive = [variant[key] for key in ("speedup", "floor_ms") if variant.get(key) is not None]
            if not 0 <= variant["median_ms"] < math.inf or not all(0 < value < math.inf for value in positive):
                raise ValueError(f"{variant['name']} of {point['case']} holds what no measurement gives")


def read_kind(folder, kind, version, check):
    """The files of expectations/HARDWARE/KIND, each of one pair, by hardware and target."""
    def check_file(data, path):
        if data["schema_version"] != version:
            raise ValueError(f"schema_version {data['schema_version']} is not {version}; record it again with --update-expectations")
        if (data["hardware"], data["target"].replace(":", "_")) != (path.parent.parent.name, path.stem):
            raise ValueError(f"it says that it is of {data['target']} on {data['hardware']}; move it to its place")
        missing = {"lesson", "source_digest", "recorded"} - data.keys()
        if missing:
            raise ValueError(f"it has no {', '.join(sorted(missing))}")
        check(data)

    files = [read_json(path, check_file, lambda data: data) for path in sorted(folder.glob(f"*/{kind}/*.json"))]
    return {(data["hardware"], data["target"]): data for data in files}


def read_sweep_records(folder):
    return read_kind(folder, "sweeps", SWEEP_VERSION, check_points)


def read_counter_records(folder):
    return read_kind(folder, "counters", COUNTED_VERSION, lambda data: data["variants"])


def read_sweeps(root):
    """Targets that have a recorded sweep."""
    return {target for _, target in read_sweep_records(root / "expectations")}
