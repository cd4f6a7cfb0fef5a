# SPDX-License-Identifier: Apache-2.0
"""PyTorch as scripts/torch-figures measures it: variants, and the clock that times them in turn."""
import time
from dataclasses import dataclass, field
from typing import Callable, Optional

LEAST_SAMPLES, MOST_SAMPLES, WARM_UPS, LONGEST_HOLD_S = 11, 101, 3, 0.05
MIB = 1 << 20


@dataclass
class Variant:
    name: str
    run: Callable
    before: Optional[Callable] = None  # each sample, untimed
    start: str = "held"  # or "at once", or "host": by the host's clock
    cold: bool = True
    compiles: bool = False
    per: float = 1  # a time is divided by it
    also: Callable = field(default=lambda: "")  # further figures, of the last sample
    times_ms: list = field(default_factory=list)
    host_s: float = 0
    compile_s: float = 0
    refused: str = ""
    further: str = ""


class Torch:
    """The module, its device, sizes for it, and a clock."""

    def __init__(self, tiny):
        import torch
        self.t, self.F, self.nn, self.tiny = torch, torch.nn.functional, torch.nn, tiny
        self.gpu = torch.cuda.is_available()
        self.device = "cuda" if self.gpu else "cpu"
        torch.manual_seed(1)
        torch.set_default_device(self.device)
        torch.backends.cudnn.benchmark = True
        l2 = torch.cuda.get_device_properties(0).L2_cache_size if self.gpu else MIB
        self.flushed = torch.zeros(2 * l2 // 4, dtype=torch.int32)

    def size(self, full, tiny):
        return tiny if self.tiny else full

    def normal(self, *shape, deviation=1.0, dtype=None):
        return self.t.randn(*shape, dtype=dtype or self.t.bfloat16).mul_(deviation)

    def weights(self, out, width, *, count=None, grad=False):
        shape = (out, width) if count is None else (count, out, width)
        return self.normal(*shape, deviation=width**-0.5).requires_grad_(grad)

    def wait(self):
        if self.gpu:
            self.t.cuda.synchronize()

    def sample(self, variant):
        """Returns the milliseconds of one run."""
        if variant.before:
            variant.before()
        if variant.cold and variant.start != "host":
            self.flushed.fill_(1)
            self.flushed.sum()
        self.wait()
        if not self.gpu or variant.start == "host":
            begin = time.perf_counter()
            variant.run()
            self.wait()
            return (time.perf_counter() - begin) * 1e3 / variant.per
        begin, end = (self.t.cuda.Event(enable_timing=True) for _ in range(2))
        if variant.start == "held":
            self.t.cuda._sleep(int(min(1.3 * variant.host_s + 1e-4, LONGEST_HOLD_S) * 2e9))
        begin.record()
        variant.run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / variant.per

    def warm(self, variant):
        begin = time.perf_counter()
        for _ in range(WARM_UPS):
            if variant.before:
                variant.before()
            self.wait()
            queued = time.perf_counter()
            variant.run()
            variant.host_s = time.perf_counter() - queued
            self.wait()
            variant.compile_s = variant.compile_s or (time.perf_counter() - begin if variant.compiles else 0)

    def forget(self):
        """Gives back what a piece of work has left."""
        self.t.compiler.reset()
        if self.gpu:
            self.t.cuda.empty_cache()
            self.t.cuda.set_per_process_memory_fraction(1.0)
            self.set_allocator("expandable_segments:False")

    def set_allocator(self, setting):
        (getattr(self.t._C, "_accelerator_setAllocatorSettings", None) or self.t.cuda.memory._set_allocator_settings)(setting)

    def graph(self, run):
        """Returns a replay of what `run` queues, captured at the first call."""
        graph = []

        def replay():
            if not graph:
                run()
                self.wait()
                captured = self.t.cuda.CUDAGraph()
                with self.t.cuda.graph(captured):
                    run()
                graph.append(captured)
            graph[0].replay()
        return replay if self.gpu else run

    def compiled(self, run):
        return self.t.compile(run, dynamic=False)
