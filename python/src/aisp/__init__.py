# SPDX-License-Identifier: Apache-2.0
"""aisp: reads what `aisp run` wrote.

    import aisp
    run = aisp.load("latest")
    run.variants[["target", "variant", "speedup.value", "timing.median_ms"]]
"""
from aisp.runs import Runs, load

__all__ = ["Runs", "load"]
