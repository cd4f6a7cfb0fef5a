# SPDX-License-Identifier: Apache-2.0
"""The work of pairs of chapter 20 in PyTorch's operations. A function has a pair's name and returns its variants."""
from torch_work.bench import Variant


def rms_norm(torch, x, weights):
    """As Transformers writes it."""
    wide = x.float()
    return weights * (wide * torch.t.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def bf16_mlp(torch):
    F, tokens, hidden, ffn = torch.F, torch.size(32768, 32), torch.size(1024, 64), torch.size(4096, 96)
    x, gains = torch.normal(tokens, hidden), torch.normal(hidden)
    gate, up, down = torch.weights(ffn, hidden), torch.weights(ffn, hidden), torch.weights(hidden, ffn)

    def mlp(norm):
        def run():
            h = norm(x)
            return x + F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down)
        return run

    def library_norm(x):
        return F.rms_norm(x, (hidden,), gains, 1e-5)
    return [Variant("eager", mlp(lambda x: rms_norm(torch, x, gains))), Variant("eager_rms_norm", mlp(library_norm)),
            Variant("compiled", torch.compiled(mlp(lambda x: rms_norm(torch, x, gains))), compiles=True)]


class Decoder:
    """Layers of a model of 1 or 8 billion weights, and rows of angles for RoPE."""

    def __init__(self, torch, layers, *, tokens, hidden=4096, heads=32, kv_heads=8, head=128, ffn=14336):
        self.torch, self.heads, self.kv_heads, self.head = torch, heads, kv_heads, head
        q, kv = heads * head, kv_heads * head
        shapes = ((q, hidden), (kv, hidden), (kv, hidden), (hidden, q), (ffn, hidden), (ffn, hidden), (hidden, ffn))
        self.layers = [[torch.weights(*shape) for shape in shapes] + [torch.normal(hidden), torch.normal(hidden)] for _ in range(layers)]
        angles = torch.t.outer(torch.t.arange(tokens), 500000.0 ** (torch.t.arange(0, head, 2) / -head)).repeat(1, 2)
        self.cos, self.sin = angles.cos().bfloat16(), angles.sin().bfloat16()

    def cache(self, requests, tokens):
        shape = (requests, self.kv_heads, tokens, self.head)
        return [(self.torch.normal(*shape), self.torch.normal(*shape)) for _ in self.layers]

    def layer(self, x, weights, cache, first, norm):
        """x: [requests][tokens][hidden], whose keys and values go to the cache from `first` on."""
        F = self.torch.F
        q, k, v, o, gate, up, down, norm_1, norm_2 = weights
        requests, tokens, _ = x.shape
        h = norm(x, norm_1)
        q, k, v = (F.linear(h, w).view(requests, tokens, -1, self.head).transpose(1, 2) for w in (q, k, v))
        cos, sin = self.cos[first:first + tokens], self.sin[first:first + tokens]
        q, k = (rows * cos + self.torch.t.cat((-rows[..., self.head // 2:], rows[..., :self.head // 2]), -1) * sin for rows in (q, k))
        keys, values = cache
        keys[:, :, first:first + tokens] = k
        values[:, :, first:first + tokens] = v
        end = first + tokens
        attended = F.scaled_dot_product_attention(q, keys[:, :, :end], values[:, :, :end], is_causal=tokens > 1, enable_gqa=True)
        x = x + F.linear(attended.transpose(1, 2).reshape(requests, tokens, -1), o)
        h = norm(x, norm_2)
        return x + F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down)

    def norms(self):
        """RMSNorm as Transformers writes it, and the library's."""
        F = self.torch.F
        return (lambda x, weights: rms_norm(self.torch, x, weights)), (lambda x, weights: F.rms_norm(x, weights.shape, weights, 1e-5))


def small(torch):
    """Sizes of a decoder for --tiny."""
    return {"hidden": 64, "heads": 4, "kv_heads": 2, "head": 16, "ffn": 96} if torch.tiny else {}


def prefill_block(torch):
    tokens = torch.size(8192, 16)
    model = Decoder(torch, 1, tokens=tokens, **small(torch))
    weights, cache = model.layers[0], model.cache(1, tokens)[0]
    x, before = (torch.normal(1, tokens, weights[0].shape[1]) for _ in range(2))
    ours, library = model.norms()

    def block(norm):
        return lambda: model.layer(x + before, weights, cache, 0, norm)
    return [Variant("eager", block(ours)), Variant("eager_rms_norm", block(library)), Variant("compiled", torch.compiled(block(ours)), compiles=True)]


def decode_step(torch):
    context, words = torch.size(1024, 16), torch.size(128256, 100)
    sizes = small(torch) or {"hidden": 2048, "heads": 32, "kv_heads": 8, "head": 64, "ffn": 8192}
    model = Decoder(torch, torch.size(16, 2), tokens=context + 1, **sizes)
    head, last_norm, x = torch.weights(words, sizes["hidden"]), torch.normal(sizes["hidden"]), torch.normal(1, 1, sizes["hidden"])
    cache = model.cache(1, context + 1)
    ours, library = model.norms()

    def step(layer, norm):
        def run():
            rows = x
            for weights, of_layer in zip(model.layers, cache):
                rows = layer(rows, weights, of_layer, context, norm)
            return torch.F.linear(norm(rows, last_norm), head)
        return run
    compiled = torch.compiled(model.layer)
    return [Variant("eager", step(model.layer, ours), start="at once"),
            Variant("eager_graph", torch.graph(step(model.layer, ours)), start="at once"),
            Variant("eager_rms_norm_graph", torch.graph(step(model.layer, library)), start="at once"),
            Variant("compiled_graph", torch.graph(step(compiled, ours)), start="at once", compiles=True)]


def optimization_ladder(torch):
    context, requests, tokens = torch.size(512, 16), 8, 4
    model = Decoder(torch, torch.size(4, 2), tokens=context + tokens, **small(torch))
    caches, x = model.cache(requests, context + tokens), torch.normal(requests, 1, model.layers[0][0].shape[1])
    ours, _ = model.norms()

    def steps(first, count):
        for at in range(context, context + tokens):
            rows = x[first:first + count]
            for weights, (keys, values) in zip(model.layers, caches):
                rows = model.layer(rows, weights, (keys[first:first + count], values[first:first + count]), at, ours)
    return [Variant("one_by_one", lambda: [steps(request, 1) for request in range(requests)], start="at once"),
            Variant("batched", lambda: steps(0, requests), start="at once"),
            Variant("batched_graph", torch.graph(lambda: steps(0, requests)), start="at once")]


def moe_layer(torch):
    t, F = torch.t, torch.F
    tokens, hidden, ffn, experts, top_k = torch.size(8192, 32), torch.size(2048, 64), torch.size(768, 32), torch.size(128, 8), torch.size(8, 2)
    x, gate = torch.normal(tokens, hidden), torch.weights(experts, hidden)
    up, down = torch.weights(2 * ffn, hidden, count=experts), torch.weights(hidden, ffn, count=experts)

    def route():
        weights, ids = F.softmax(F.linear(x, gate), -1, dtype=t.float32).topk(top_k, -1)
        return (weights / weights.sum(-1, keepdim=True)).to(x.dtype), ids

    def activated(h):
        gates, ups = h.chunk(2, -1)
        return F.silu(gates) * ups

    def expert_loop():
        weights, ids = route()
        mask, out = F.one_hot(ids, experts).permute(2, 1, 0), t.zeros_like(x)
        for expert in (mask.sum((-1, -2)) > 0).nonzero().flatten().tolist():
            choice, rows = t.where(mask[expert])
            y = F.linear(activated(F.linear(x[rows], up[expert])), down[expert]) * weights[rows, choice, None]
            out.index_add_(0, rows, y)
        return out
    grouped_mm = getattr(F, "grouped_mm", None) or t._grouped_mm

    def grouped():
        weights, ids = route()
        order = ids.flatten().argsort(stable=True)
        rows, ends = order // top_k, (ids.flatten()[:, None] == t.arange(experts, device=x.device)).sum(0).cumsum(0).int()
        h = activated(grouped_mm(x[rows], up.transpose(-2, -1), offs=ends))
        y = grouped_mm(h, down.transpose(-2, -1), offs=ends) * weights.flatten()[order, None]
        return t.zeros_like(x).index_add_(0, rows, y)
    return [Variant("expert_loop", expert_loop, start="at once"), Variant("grouped_mm", grouped, start="at once"),
            Variant("grouped_mm_compiled", torch.compiled(grouped), start="at once", compiles=True)]


def gpt_train_step(torch):
    t, F, nn = torch.t, torch.F, torch.nn
    sequences, length, width, words, layers = torch.size(8, 2), torch.size(1024, 16), torch.size(768, 128), torch.size(50304, 100), torch.size(6, 2)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out, self.up, self.down = (nn.Linear(*of) for of in ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)))

        def forward(self, x):
            q, k, v = (part.view(*x.shape[:2], -1, 64).transpose(1, 2) for part in self.qkv(self.norm_1(x)).chunk(3, -1))
            x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape))
            return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places, self.last = nn.Embedding(words, width), nn.Embedding(length, width), nn.LayerNorm(width)
            self.blocks = nn.Sequential(*(Block() for _ in range(layers)))

        def forward(self, ids, labels):
            x = self.last(self.blocks(self.words(ids) + self.places(t.arange(length, device=ids.device))))
            return F.cross_entropy(F.linear(x, self.words.weight).view(-1, words), labels.view(-1))
    model, ids, labels = Gpt(), *(t.randint(words, (sequences, length)) for _ in range(2))

    def step(loss_of, **how):
        adam = t.optim.AdamW(model.parameters(), lr=1e-4, **how)

        def run():
            adam.zero_grad(set_to_none=True)
            with t.autocast(torch.device, t.bfloat16):
                loss = loss_of(ids, labels)
            loss.backward()
            adam.step()
        return run
    return [Variant("autocast", step(model)), Variant("autocast_fused_adamw", step(model, fused=True)),
            Variant("compiled_fused_adamw", step(torch.compiled(model), fused=True), compiles=True)]


def resnet_stage(torch):
    t, nn = torch.t, torch.nn
    images, wide, narrow = torch.size(256, 2), torch.size(1024, 32), torch.size(256, 8)

    class Bottleneck(nn.Module):
        def __init__(self):
            super().__init__()
            kinds = ((wide, narrow, 1), (narrow, narrow, 3), (narrow, wide, 1))
            self.convolutions = nn.ModuleList(nn.Conv2d(*kind, padding=kind[2] // 2, bias=False) for kind in kinds)
            self.norms, self.relu = nn.ModuleList(nn.BatchNorm2d(kind[1]) for kind in kinds), nn.ReLU(inplace=True)

        def forward(self, x):
            y = x
            for i, (convolution, norm) in enumerate(zip(self.convolutions, self.norms)):
                y = norm(convolution(y))
                y = self.relu(y + x if i == 2 else y)
            return y
    first = nn.Sequential(*(Bottleneck() for _ in range(6))).eval().bfloat16()
    last = nn.Sequential(*(Bottleneck() for _ in range(6))).eval().bfloat16().to(memory_format=t.channels_last)
    x = torch.normal(images, wide, 14, 14)
    x_last = x.to(memory_format=t.channels_last)

    def inferred(model, x):
        def run():
            with t.no_grad():
                return model(x)
        return run
    return [Variant("channels_first", inferred(first, x)), Variant("channels_last", inferred(last, x_last)),
            Variant("channels_last_compiled", inferred(torch.compiled(last), x_last), compiles=True)]


def dlrm_inference(torch):
    t, F = torch.t, torch.F
    samples, tables, rows, width, lookups = torch.size(16384, 8), torch.size(26, 3), torch.size(400000, 50), torch.size(128, 16), 8
    of_tables = [torch.normal(rows, width) for _ in range(tables)]
    indices = [t.randint(rows, (samples, lookups)) for _ in range(tables)]
    vectors = tables + 1
    first, second = t.tril_indices(vectors, vectors, -1)

    def layers(*widths):
        return [(torch.weights(out, width), torch.normal(out)) for width, out in zip(widths, widths[1:])]
    bottom, dense = layers(13, 512, 256, width), torch.normal(samples, 13)
    top, last = layers(width + vectors * (vectors - 1) // 2, 1024, 1024, 512, 256), torch.weights(1, 256)

    def through(x, of):
        for weights, bias in of:
            x = F.relu(F.linear(x, weights, bias))
        return x

    def run():
        x = through(dense, bottom)
        pooled = [F.embedding_bag(index, table, mode="sum") for index, table in zip(indices, of_tables)]
        all_vectors = t.cat([x] + pooled, 1).view(samples, vectors, width)
        products = t.bmm(all_vectors, all_vectors.transpose(1, 2))[:, first, second]
        return t.sigmoid(F.linear(through(t.cat([x, products], 1), top), last))
    return [Variant("eager", run), Variant("compiled", torch.compiled(run), compiles=True)]


def vector_search(torch):
    t, count, width, k = torch.t, torch.size(2_000_000, 500), torch.size(768, 32), torch.size(100, 10)
    vectors, queries = torch.normal(count, width), torch.normal(64, width)
    variants = [Variant("scores_in_bf16", lambda: (queries @ vectors.T).topk(k))]
    if torch.gpu:
        variants.append(Variant("scores_in_fp32", lambda: t.mm(queries, vectors.T, out_dtype=t.float32).topk(k)))
    return variants
