# SPDX-License-Identifier: Apache-2.0
"""aisp: measures functions against one another, and reads what `aisp run` wrote.

    import aisp
    aisp.bench("softmax", inputs=..., baseline=..., optimized=..., reference=...)

    run = aisp.load("latest")
    run.variants[["target", "variant", "speedup.value", "timing.median_ms"]]
"""
from aisp.arrays import current_stream
from aisp.measuring import Variant, bench, main, sum_of
from aisp.results import Error, Failed, Result
from aisp.runs import Runs, load

__all__ = ["Error", "Failed", "Result", "Runs", "Variant", "bench", "current_stream", "load", "main", "sum_of"]
