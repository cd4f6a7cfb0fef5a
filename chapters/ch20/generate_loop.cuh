// SPDX-License-Identifier: Apache-2.0
// The work of a generate loop after a step, and the memory that it grows in.
#pragma once
#include <aisp/check.hpp>

#include <cstdint>

#include "decoder/batch.hpp"

namespace aisp::ch20 {

using decoder::bf16;

// Freed memory stays with the pool, so that growing costs no call of the driver.
inline void keep_freed_memory(int device) {
  cudaMemPool_t pool = nullptr;
  check(cudaDeviceGetDefaultMemPool(&pool, device));
  std::uint64_t keep_all = ~std::uint64_t{0};
  check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep_all));
}

// Behind a step: what a sequence that still runs has chosen is kept. A block to each sequence.
struct Kept {
  int *tokens, *positions;  // of the batch
  const int *next, *contexts, *lengths;
  const bf16* chosen;
  int* all_tokens;     // [step][sequence]; -1 after a sequence's end
  bf16* states;        // [step][sequence][hidden]; zeros behind it
  int *left, hidden;   // left: sequences that run
  volatile int* flag;  // pinned: 1 when none does
};
constexpr int keep_threads = 256;
static __global__ __launch_bounds__(keep_threads) void keep_kernel(Kept kept) {
  const int sequence = static_cast<int>(blockIdx.x), count = static_cast<int>(gridDim.x);
  const int step = kept.positions[sequence] - kept.contexts[sequence], length = kept.lengths[sequence];
  const std::size_t to = (static_cast<std::size_t>(step) * count + sequence) * kept.hidden,
                    from = static_cast<std::size_t>(sequence) * kept.hidden;
  for (int i = static_cast<int>(threadIdx.x); i < kept.hidden; i += keep_threads)
    kept.states[to + i] = step < length ? kept.chosen[from + i] : bf16{};
  __syncthreads();  // all have read the position
  if (threadIdx.x != 0) return;
  kept.all_tokens[step * count + sequence] = step < length ? kept.next[sequence] : -1;
  kept.tokens[sequence] = step + 1 < length ? kept.next[sequence] : 0;
  ++kept.positions[sequence];
  if (step + 1 == length && atomicSub(kept.left, 1) == 1) *kept.flag = 1;
}

}  // namespace aisp::ch20
