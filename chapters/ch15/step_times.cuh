// SPDX-License-Identifier: Apache-2.0
// What the steps of a GPU leave: tokens, the states after the last ones, and when that was.
#pragma once
#include "serving_rows.cuh"

namespace aisp::ch15 {

constexpr int steps = 32, most_prompts = 16;

// When things were done on a GPU, in ns of its clock: the run's begin, each decode step, each prompt.
struct Times {
  unsigned long long begin, step[steps], prompt[most_prompts];
};
__device__ __forceinline__ unsigned long long now() {
  unsigned long long time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}
static __global__ void start_clock_kernel(Times* times) { times->begin = now(); }
// The tokens that decode rows have chosen; their positions have been moved on already, or not. A block to each row.
struct Decoded {
  Batch batch;
  const int *next, *lengths;
  const bf16* chosen;
  int* tokens;   // [step][request]
  bf16* states;  // of the last step
  int requests, hidden, moved_on;
  Times* times;
};
static __global__ void keep_decoded_kernel(Decoded work) {
  const int row = static_cast<int>(blockIdx.x), request = work.batch.sequences[row];
  const int step = work.batch.positions[row] - work.lengths[request] - work.moved_on;
  if (threadIdx.x == 0) {
    work.tokens[step * work.requests + request] = work.next[row];
    if (row == 0) work.times->step[step] = now();
  }
  if (step + 1 < steps) return;
  for (int i = static_cast<int>(threadIdx.x); i < work.hidden; i += static_cast<int>(blockDim.x))
    work.states[static_cast<std::size_t>(request) * work.hidden + i] =
        work.chosen[static_cast<std::size_t>(row) * work.hidden + i];
}
struct Prompts {
  int count, number[most_prompts];
};
static __global__ void keep_prompts_kernel(Prompts prompts, const int* next, int* first_tokens, Times* times) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= prompts.count) return;
  first_tokens[prompts.number[i]] = next[i];
  times->prompt[prompts.number[i]] = now();
}
}  // namespace aisp::ch15
