// SPDX-License-Identifier: Apache-2.0
// A decoder-only transformer of a few layers, and a step of it: functions that launch on a stream what they are named for. run()
// strings them together; a pair that replaces one derives from Step and declares it again. A row's results have the same bits
// whatever else is in the step.
#pragma once
#include <aisp/setup.hpp>

#include <cmath>
#include <cstdint>

#include "attention.cuh"
#include "layer.cuh"
#include "product.hpp"
#include "shape.hpp"

namespace aisp::decoder {

struct Weights {
  const bf16* embedding;                 // [vocabulary][hidden]
  const bf16* norms;                     // [2 layers + 1][hidden]
  const bf16 *qkv, *o, *gate_up, *down;  // [layer][outputs][inputs]
  const bf16* head;                      // [words][hidden]; or null
  const float* angles;                   // [position][head_size]: cosine and sine of each pair
};
// Buffers for a step's rows, one after the other.
struct Workspace {
  bf16 *x, *normed, *qkv, *attended, *delta, *gate_up, *active;
  bf16* chosen;   // normed, of the rows that a token is chosen for
  float* logits;  // of those
  Partials partials;
  unsigned* long_tickets;
};
struct Products {
  Product<bf16> qkv, o, gate_up, down;
  Product<float> head;
  explicit Products(const Shape& s, int sms = 0)
      : qkv{s.qkv_columns(), s.hidden, s.layers, sms},
        o{s.hidden, s.q_columns(), s.layers, sms},
        gate_up{2 * s.ffn, s.hidden, s.layers, sms},
        down{s.hidden, s.ffn, s.layers, sms},
        head{s.words, s.hidden, 1, sms} {}
  // For steps of so many rows, of which tokens are chosen for so many.
  void tune(const CublasLt& lt, cudaStream_t stream, const Weights& weights, int rows, int chosen) {
    qkv.tune(lt, stream, weights.qkv, rows);
    o.tune(lt, stream, weights.o, rows);
    gate_up.tune(lt, stream, weights.gate_up, rows);
    down.tune(lt, stream, weights.down, rows);
    if (weights.head != nullptr && chosen > 0) head.tune(lt, stream, weights.head, chosen);
  }
};

struct Model {
  Shape shape;
  Weights weights;
  Workspace workspace;
  const Products* products;
};

// A forward pass. `cache` is that of the first layer; that of the next is `layer_elements` further.
template <class Cache>
struct Step {
  Model model;
  Batch batch;
  Cache cache;
  std::size_t layer_elements;
  int* next = nullptr;      // [chosen]: the tokens chosen
  bool advances = false;    // positions of the chosen rows are moved on
  bool overlapping = true;  // kernels begin while those before them end

  void embed(cudaStream_t stream) const {
    norm(stream,
         {batch.tokens, model.weights.embedding, nullptr, model.workspace.x, model.workspace.normed, model.weights.norms, nullptr,
          model.shape.hidden},
         batch.rows);
  }
  void project(cudaStream_t stream, int layer) const {
    model.products->qkv.run(stream, model.weights.qkv, layer, model.workspace.normed, model.workspace.qkv, batch.rows,
                            overlapping);
  }
  void append(cudaStream_t stream, int layer) const {
    launch_kernel(stream, append_kernel<Cache>, grid(static_cast<unsigned>(batch.rows), append_threads),
                  Append<Cache>{model.workspace.qkv, of_layer(layer), batch.sequences, batch.positions, model.weights.angles,
                                model.shape.heads, model.shape.kv_heads, model.shape.head_size});
  }
  void attend(cudaStream_t stream, int layer) const {
    if (model.shape.head_size == 128) attend_heads<128>(stream, layer);
    else attend_heads<64>(stream, layer);
  }
  // From the results of attention to the normed rows of the next layer.
  void finish(cudaStream_t stream, int layer) const {
    const Workspace& w = model.workspace;
    const Shape& s = model.shape;
    model.products->o.run(stream, model.weights.o, layer, w.attended, w.delta, batch.rows, overlapping);
    norm(stream, residual(2 * layer + 1), batch.rows);
    model.products->gate_up.run(stream, model.weights.gate_up, layer, w.normed, w.gate_up, batch.rows, overlapping);
    const dim3 blocks{static_cast<unsigned>((s.ffn / shared::packet + swiglu_threads - 1) / swiglu_threads),
                      static_cast<unsigned>(batch.rows)};
    launch_kernel(stream, swiglu_kernel, grid(blocks, swiglu_threads), w.gate_up, w.active, s.ffn);
    model.products->down.run(stream, model.weights.down, layer, w.active, w.delta, batch.rows, overlapping);
    if (layer + 1 < s.layers) norm(stream, residual(2 * layer + 2), batch.rows);
  }
  // The last norm, of the chosen rows alone, and their tokens.
  void choose(cudaStream_t stream) const {
    const Workspace& w = model.workspace;
    const Shape& s = model.shape;
    if (batch.chosen == 0) return;
    Norm last = residual(2 * s.layers);
    last.normed = w.chosen, last.chosen = batch.chosen_rows;
    norm(stream, last, batch.chosen);
    const Choice choice{next, advances ? batch.positions : nullptr, batch.chosen_rows};
    const Grid blocks = grid(static_cast<unsigned>(batch.chosen), choose_threads);
    if (s.words > 0) {
      model.products->head.run(stream, model.weights.head, 0, w.chosen, w.logits, batch.chosen, overlapping);
      launch_kernel(stream, choose_kernel<float>, blocks, w.logits, s.words, choice);
    } else launch_kernel(stream, choose_kernel<bf16>, blocks, w.chosen, s.hidden, choice);
  }

  Cache of_layer(int layer) const {
    Cache cache_of_layer = cache;
    cache_of_layer.k += static_cast<std::size_t>(layer) * layer_elements;
    cache_of_layer.v += static_cast<std::size_t>(layer) * layer_elements;
    return cache_of_layer;
  }
  Grid grid(dim3 blocks, unsigned threads, std::size_t shared_bytes = 0) const {
    return {.blocks = blocks, .threads = threads, .shared_bytes = shared_bytes, .overlapping = overlapping};
  }

 private:
  // x += delta, and the norm that follows it.
  Norm residual(int norm) const {
    const Workspace& w = model.workspace;
    return {nullptr, nullptr,           w.delta,
            w.x,     w.normed,          model.weights.norms + static_cast<std::size_t>(norm) * model.shape.hidden,
            nullptr, model.shape.hidden};
  }
  void norm(cudaStream_t stream, const Norm& work, int rows) const {
    launch_kernel(stream, norm_kernel, grid(static_cast<unsigned>(rows), norm_threads), work);
  }
  template <int head_size>
  void attend_heads(cudaStream_t stream, int layer) const {
    const Shape& s = model.shape;
    Attention<Cache> work{model.workspace.qkv,
                          s.qkv_columns(),
                          of_layer(layer),
                          batch.sequences,
                          batch.positions,
                          batch.short_blocks,
                          s.heads,
                          s.kv_heads,
                          1.4426950408889634f / std::sqrt(static_cast<float>(head_size)),
                          model.workspace.attended,
                          model.workspace.partials};
    const auto heads = static_cast<unsigned>(s.kv_heads), pieces = static_cast<unsigned>(batch.most_pieces);
    if (batch.shorts > 0)
      launch_kernel(stream, short_kernel<head_size, Cache>,
                    grid({heads, static_cast<unsigned>(batch.shorts), pieces}, short_threads, sizeof(ShortMemory<head_size>)),
                    work);
    if (batch.longs == 0) return;
    const bool split = batch.split_longs && batch.rows <= work.partials.rows;
    work.blocks = batch.long_blocks;
    work.partials.tickets = model.workspace.long_tickets;
    launch_kernel(
        stream, long_kernel<head_size, Cache>,
        grid({heads, static_cast<unsigned>(batch.longs), split ? pieces : 1}, long_threads, sizeof(LongMemory<head_size>)), work,
        split);
  }
};

// Runs a step as a forward pass; `S` is a Step or what a pair derives from one.
template <class S>
void run(const S& step, cudaStream_t stream) {
  step.embed(stream);
  for (int layer = 0; layer < step.model.shape.layers; ++layer) {
    step.project(stream, layer);
    step.append(stream, layer);
    step.attend(stream, layer);
    step.finish(stream, layer);
  }
  step.choose(stream);
}

}  // namespace aisp::decoder
