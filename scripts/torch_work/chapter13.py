# SPDX-License-Identifier: Apache-2.0
"""The work of pairs of chapter 13 in PyTorch's operations. A function has a pair's name and returns its variants."""
import ctypes
import pathlib
import random
import re

from torch_work.bench import MIB, Variant


def allocations(seed):
    """Returns the makes (tensor, bytes) and frees (tensor, None) of ch13:custom_allocator's step, drawn anew."""
    draw, kib = random.Random(seed), 1024
    sizes = [64 * kib, 64 * kib + 16, 96 * kib, 128 * kib, 128 * kib + 16, 160 * kib, 224 * kib, 256 * kib, 256 * kib - 16, 320 * kib,
             512 * kib, 512 * kib + 16, 768 * kib + 16, 1024 * kib]
    layers, forward, backward = 12, 13, 22
    operations, results, last_use, made = layers * (forward + backward), [], [], []
    for o in range(operations):
        own = [len(last_use)] + ([len(last_use) + 1] if (o + 1) * 11 // 21 != o * 11 // 21 else [])
        last_use += [o] * len(own)
        made.append(own)
        results.append(own)
        if o > 0:
            layer = layers - 1 - (o - layers * forward) // backward
            other = o - 1 - draw.randrange(min(o, forward)) if o < layers * forward else layer * forward + draw.randrange(forward)
            for tensor in (results[o - 1][0], draw.choice(results[other])):
                last_use[tensor] = o
    frees = [[] for _ in range(operations)]
    for tensor, used in enumerate(last_use):
        frees[min(used + draw.randrange(7), operations - 1)].append(tensor)
    return [call for o in range(operations) for call in [(tensor, draw.choice(sizes)) for tensor in made[o]] + [(tensor, None) for tensor in frees[o]]]


def custom_allocator(torch):
    calls = allocations(1)
    count, memory = sum(size is not None for _, size in calls), {}

    def through(make, free):
        def run():
            for tensor, size in calls:
                if size is None:
                    free(memory.pop(tensor))
                else:
                    memory[tensor] = make(size)
        return run
    if not torch.gpu:
        return [Variant("python_alone", through(abs, abs), start="host", per=count)]
    loaded = re.search(r"\S*libcudart\S*", pathlib.Path("/proc/self/maps").read_text())
    cudart, stream, at = ctypes.CDLL(loaded[0]), ctypes.c_void_p(torch.t.cuda.current_stream().cuda_stream), ctypes.c_void_p()
    pool, all_bytes = ctypes.c_void_p(), ctypes.c_uint64(2**64 - 1)
    if cudart.cudaDeviceGetDefaultMemPool(ctypes.byref(pool), 0) or cudart.cudaMemPoolSetAttribute(pool, 4, ctypes.byref(all_bytes)):
        raise RuntimeError("the driver's pool cannot be set")

    def checked(status):
        if status:
            raise RuntimeError(f"CUDA error {status}")
        return at.value

    def of_cuda(make, free):
        return through(lambda size: checked(make(size)), lambda address: checked(free(ctypes.c_void_p(address))))
    by_reference, raw = ctypes.byref(at), torch.t._C
    number = stream.value or 0
    return [
        Variant("calls_alone", of_cuda(lambda _: cudart.cudaPeekAtLastError(), lambda _: cudart.cudaPeekAtLastError()), start="host", per=count),
        Variant("caching_allocator", through(lambda size: raw._cuda_cudaCachingAllocator_raw_alloc(size, number),
                                             raw._cuda_cudaCachingAllocator_raw_delete), start="host", per=count),
        Variant("cudaMallocAsync", of_cuda(lambda size: cudart.cudaMallocAsync(by_reference, ctypes.c_size_t(size), stream),
                                           lambda address: cudart.cudaFreeAsync(address, stream)), start="host", per=count),
        Variant("cudaMalloc", of_cuda(lambda size: cudart.cudaMalloc(by_reference, ctypes.c_size_t(size)), cudart.cudaFree), start="host", per=count)]


def stream_ordered_pool(torch):
    t, tokens = torch.t, torch.size(2048, 64)
    words = [tokens * (4096 if i % 2 == 0 else 14336) // 2 for i in range(64)]
    space, offsets = t.empty(sum(words), dtype=t.float32), [sum(words[:i]) for i in range(len(words))]

    def fixed(i, count):
        return space[offsets[i]:offsets[i] + count]

    def steps(make, after=lambda: None, count=3):
        def run():
            for step in range(count):
                tensors = []
                for i, full in enumerate(words):
                    tensors.append(make(i, full // 8 * 7 if step == 1 else full))
                    tensors[-1].fill_(i)
                sums = []
                while tensors:
                    sums.append(tensors.pop().sum())
                t.stack(sums).sum().item()
                after()
        return run

    def made(_, count):
        return t.empty(count, dtype=t.float32)
    variants = [Variant("caching_allocator", steps(made), start="at once"), Variant("fixed_buffers", steps(fixed), start="at once")]
    if torch.gpu:
        variants.append(Variant("empty_cache_each_step", steps(made, t.cuda.empty_cache), before=steps(made, count=1), start="at once"))
    return variants


def expandable_segments(torch):
    t = torch.t
    total, cap, experts = torch.size(1600, 160) * MIB, torch.size(2048, 256) * MIB, 24
    if not torch.gpu:
        raise RuntimeError("needs a GPU")

    def sizes(draw, skewed):
        shares = [25 ** draw.random() for _ in range(experts)]
        if skewed:
            shares[7] = 1.5 * (sum(shares) - shares[7])
        return [int(total * share / sum(shares)) // MIB * MIB or MIB for share in shares]

    def step(of_experts):
        for attempt in range(2):
            try:
                buffers = [t.empty(size // 4, dtype=t.float32).fill_(e) for e, size in enumerate(of_experts)]
                return [buffer.sum() for buffer in buffers]
            except t.cuda.OutOfMemoryError:  # no free block is large enough, although enough bytes are free
                if attempt == 1:
                    raise
                buffers = None
                t.cuda.empty_cache()
        return None

    def variant(name, setting, capped=True):
        rounds, start = random.Random(7), {}

        def before():
            t.cuda.synchronize()
            t.cuda.empty_cache()
            torch.set_allocator(setting)
            limit = (t.cuda.memory_reserved() + cap) / t.cuda.get_device_properties(0).total_memory
            t.cuda.set_per_process_memory_fraction(limit if capped else 1.0)
            start.update(reserved=t.cuda.memory_reserved(), steps=[sizes(rounds, number == 4) for number in range(8)])
            step(sizes(random.Random(3), False))
            t.cuda.synchronize()
            t.cuda.reset_peak_memory_stats()
            start.update(t.cuda.memory_stats())

        def also():
            now = t.cuda.memory_stats()
            return (f"reserves {(now['reserved_bytes.all.peak'] - start['reserved']) / MIB:.0f} MiB, "
                    f"{now['num_alloc_retries'] - start['num_alloc_retries']} retries, {now['num_device_alloc'] - start['num_device_alloc']} segments from the driver")
        return Variant(name, lambda: [step(one) for one in start["steps"]], before=before, start="at once", also=also)
    plain = "expandable_segments:False"
    return [variant("segments", plain), variant("expandable_segments", "expandable_segments:True"), variant("no_cap", plain, capped=False)]


def of_memory(torch, run):
    """Returns what is allocated after `run` beyond what was before, in MB, while its result lives."""
    if not torch.gpu:
        return 0.0
    before = torch.t.cuda.memory_allocated()
    result = run()
    kept = (torch.t.cuda.memory_allocated() - before) / 1e6
    del result
    return kept


def activation_checkpointing(torch):
    from torch.utils.checkpoint import checkpoint
    t, F = torch.t, torch.F
    tokens, width, hidden = torch.size(2048, 16), torch.size(4096, 64), torch.size(14336, 96)
    x, dy = torch.normal(tokens, width).requires_grad_(), torch.normal(tokens, width)
    blocks = [(t.ones(width, dtype=t.bfloat16).requires_grad_(), torch.weights(2 * hidden, width, grad=True), torch.weights(width, hidden, grad=True))
              for _ in range(4)]
    wanted = [x] + [weights for block in blocks for weights in block]

    def block(x, norm, gate_up, down):
        gate, up = F.linear(F.rms_norm(x, (width,), norm, 1e-5), gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, down)

    def forward(through):
        y = x
        for weights in blocks:
            y = through(y, *weights)
        return y

    def variant(name, through, compiles=False):
        def run():
            for tensor in wanted:
                tensor.grad = None
            forward(through).backward(dy)
        return Variant(name, run, compiles=compiles, also=lambda: f"keeps {of_memory(torch, lambda: forward(through)):.0f} MB")
    return [variant("save_all", block),
            variant("checkpoint", lambda *of: checkpoint(block, *of, use_reentrant=False)),
            variant("checkpoint_reentrant", lambda *of: checkpoint(block, *of, use_reentrant=True)),
            variant("save_all_compiled", torch.compiled(block), compiles=True)]


def adam_8bit(torch):
    t = torch.t
    tensors = [torch.normal(torch.size(250_000_000, 4096) // 32, deviation=0.02, dtype=t.float32).requires_grad_() for _ in range(32)]
    for tensor in tensors:
        tensor.grad = t.randn_like(tensor).mul_(1e-3)
    return [Variant(name, t.optim.AdamW(tensors, lr=1e-3, weight_decay=0.01, **how).step)
            for name, how in (("for_loop", {"foreach": False}), ("foreach", {"foreach": True}), ("fused", {"fused": True}))]


def gradient_clipping(torch):
    t, layers, width, words = torch.t, torch.size(12, 2), torch.size(768, 64), torch.size(50257, 100)
    shapes = [(words, width), (1024, width)]
    shapes += layers * [(width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,), (width,), (width,), (4 * width, width),
                        (4 * width,), (width, 4 * width), (width,)] + [(width,), (width,)]
    tensors = [torch.normal(*shape, deviation=0.02, dtype=t.float32).requires_grad_() for shape in shapes]
    for tensor in tensors:
        tensor.grad = t.randn_like(tensor).mul_(1e-3)
    adam, clip = t.optim.AdamW(tensors, fused=True), t.nn.utils.clip_grad_norm_
    return [Variant(name, lambda how=how: (how and clip(tensors, 0.1, **how), adam.step()), start="at once")
            for name, how in (("loop_clip", {"foreach": False}), ("foreach_clip", {"foreach": True}), ("no_clip", None))]


def qkv_layout(torch):
    F, sequences, tokens, heads = torch.F, torch.size(8, 1), torch.size(2048, 32), torch.size(32, 2)
    qkv = torch.normal(sequences, tokens, 3, heads, 128)

    def attend(*of):
        return F.scaled_dot_product_attention(*of, is_causal=True).transpose(1, 2).reshape(sequences, tokens, -1)

    def parts():
        return [part.transpose(1, 2) for part in qkv.unbind(2)]
    return [Variant("sdpa_of_strides", lambda: attend(*parts())),
            Variant("sdpa_of_copies", lambda: attend(*[part.contiguous() for part in parts()]))]
