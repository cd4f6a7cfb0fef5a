// SPDX-License-Identifier: Apache-2.0
// Shared by pairs about prompts and decode steps: requests whose contexts are prefilled before a run, and their rows in a step.
#pragma once
#include "decoder/decoder.hpp"
#include "decoder/pages.hpp"
#include "decoder/trace.hpp"

namespace aisp::ch15 {

using namespace decoder;
using Pages = attention::PagedCache<page_rows>;

constexpr int contexts_in_all = 8;  // prefilled; further requests have one of these

inline std::size_t size(int n) { return static_cast<std::size_t>(n); }
inline void copy_ints(int* to, const int* from, int count, cudaStream_t stream) {
  if (count > 0) check(cudaMemcpyAsync(to, from, size(count) * sizeof(int), cudaMemcpyDefault, stream));
}
// The tokens of requests of the trace, all of one length, from number `request` on.
inline HostFill<int> traced_tokens(int request, int length, int vocabulary) {
  return [=](std::span<int> to, std::uint64_t seed) {
    const Trace trace{{static_cast<double>(length), 0, length, length}};
    for (std::size_t i = 0; i < to.size(); ++i) {
      const int at = static_cast<int>(i);
      to[i] = Trace::token(seed, trace.request(request + at / length), at % length, vocabulary);
    }
  };
}
// The least that a prompt from its first token on costs, and that steps of rows with so many keys in all cost.
inline Cost prefill_cost(const Shape& s, double tokens) {
  return {.flops = 2 * tokens * s.weights() + 2 * tokens * (tokens + 1) * s.q_columns() * s.layers,
          .math = Math::bf16,
          .bytes = 2 * s.weights()};
}
inline Cost decode_cost(const Shape& s, double steps, double rows, double keys) {
  return {.flops = 2 * rows * s.weights() + 4 * keys * s.q_columns() * s.layers,
          .math = Math::bf16,
          .bytes = 2 * steps * s.weights() + keys * s.kv_bytes() * s.layers};
}

// Before a run: decode rows take their first tokens and go back to the ends of their contexts.
static __global__ void begin_kernel(Batch batch, const int* first_inputs, const int* lengths) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= batch.rows) return;
  batch.tokens[row] = first_inputs[batch.sequences[row]];
  batch.positions[row] = lengths[batch.sequences[row]];
}
// Sequences from number contexts_in_all on get the pages' contents of one before them. blockIdx: the page, the request, the
// layer.
static __global__ void repeat_contexts_kernel(Step<Pages> step, int pages) {
  const int request = static_cast<int>(blockIdx.y) + contexts_in_all, page = static_cast<int>(blockIdx.x);
  const int* const table = step.cache.table;
  if (page >= pages) return;
  const auto at = [&](int sequence) {
    return blockIdx.z * step.layer_elements +
           static_cast<std::size_t>(table[sequence * step.cache.table_stride + page]) * step.cache.page;
  };
  const std::size_t from = at(request % contexts_in_all), to = at(request);
  for (std::size_t i = threadIdx.x * 8; i < step.cache.page; i += std::size_t{blockDim.x} * 8) {
    *reinterpret_cast<uint4*>(const_cast<bf16*>(step.cache.k) + to + i) =
        *reinterpret_cast<const uint4*>(step.cache.k + from + i);
    *reinterpret_cast<uint4*>(const_cast<bf16*>(step.cache.v) + to + i) =
        *reinterpret_cast<const uint4*>(step.cache.v + from + i);
  }
}

// A sequence's rows, to [layer][keys, values][position][columns]. blockIdx: the position; the layer twice and 1 for values.
static __global__ void gather_kernel(Step<Pages> step, int sequence, bf16* to) {
  const Pages& cache = step.cache;
  const bf16* const layer = (blockIdx.y % 2 == 0 ? cache.k : cache.v) + blockIdx.y / 2 * step.layer_elements;
  const int head_size = step.model.shape.head_size, columns = step.model.shape.kv_columns();
  to += (std::size_t{blockIdx.y} * gridDim.x + blockIdx.x) * columns;
  for (int i = static_cast<int>(threadIdx.x) * 8; i < columns; i += static_cast<int>(blockDim.x) * 8)
    *reinterpret_cast<uint4*>(to + i) =
        *reinterpret_cast<const uint4*>(layer + cache.at(sequence, i / head_size, static_cast<int>(blockIdx.x)) + i % head_size);
}

}  // namespace aisp::ch15
