# SPDX-License-Identifier: Apache-2.0
"""Made-up pairs and records, for tests of what READMEs show of them."""
import pathlib
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(SOURCE / "scripts" / folder) for folder in ("lib", "lessons")]
from records import Metric, Record, Variant
from targets import Target


def variant(speedup, median_ms, low=None, high=None, **further):
    return Variant(speedup=speedup, low=low or speedup, high=high or speedup, median_ms=median_ms, **further)


def run(source_digest="abc", date_utc="2026-01-02T03:04:05Z", commit="0123456789abcdef"):
    return {"source_digest": source_digest, "date_utc": date_utc, "commit": commit, "variants": {}}


def transpose(hardware="h200", name="transpose", chapter="ch07", **further):
    variants = {
        "direct": Variant("baseline", median_ms=4.2),
        "half": variant(3, 1.4, 2.9, 3.1, percent_of_floor=92.8, speedups=[2.99, 3, 3, 3.01, 3.02], medians_ms=[1.4, 1.4, 1.4, 1.41, 1.39]),
        "tiled": variant(7.72, 0.544, 7.69, 7.74),
        "late": variant(6, 0.7, 5, 7),
        "library": variant(9, 0.5, 8, 10, role="library"),
        "quick": variant(12, 0.3, 11, 13, role="library"),
        "serial": variant(0.5, 8, 0.4, 0.6, role="control"),
    }
    machine = {"gpu": "NVIDIA H200", "driver": "580.159", "cuda": "13.0", "power_limit_w": 700}
    return Record(hardware, chapter, name, "direct", "", "time", "memory", None, [run()], machine, dict(sorted(variants.items())), **further)


def target(name="transpose", lesson="half", **further):
    return Target("ch07", name, lesson, "direct", **{"source_digests": ["fed", "abc"], **further})


def metrics(**values):
    return {name: Metric(*value) for name, value in values.items()}
