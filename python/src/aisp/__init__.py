# SPDX-License-Identifier: Apache-2.0
"""aisp: measures functions against one another, and reads what `aisp run` wrote.

    import aisp
    aisp.bench("softmax", inputs=..., baseline=..., optimized=..., reference=...)

    run = aisp.load("latest")
    run.variants[["target", "variant", "speedup.value", "timing.median_ms"]]
"""
import os

# Read when a BLAS or an OpenMP is loaded, by numpy or torch: threads that spin between calls look like work that should not be there.
if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & set(os.environ):
    os.environ["OMP_WAIT_POLICY"] = "passive"
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")

from aisp.arrays import current_stream
from aisp.measuring import Variant, bench, main, sum_of
from aisp.results import Error, Failed, Result
from aisp.runs import Runs, load

__all__ = ["Error", "Failed", "Result", "Runs", "Variant", "bench", "current_stream", "load", "main", "sum_of"]
