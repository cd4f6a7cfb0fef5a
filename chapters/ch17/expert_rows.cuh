// SPDX-License-Identifier: Apache-2.0
// A few tokens times the weights of the experts that they chose, read once: mma.m16n8k16 with 16 rows of weights as A and up to 8
// tokens as B. Lanes load weights from global memory straight to where the instruction wants them: which k is which does not
// matter as long as both operands agree, so that a lane's 16 bytes, eight neighbours of a row, are the operands of two
// instructions.
#pragma once
#include <cuda_bf16.h>
#include <aisp/device/matrix.cuh>
#include <aisp/device/reduce.cuh>
#include <aisp/device/vector.cuh>

namespace aisp::ch17 {

using bf16 = __nv_bfloat16;
inline constexpr int row_warps = 4, row_threads = row_warps * 32;  // which share the K of 16 rows of weights
inline constexpr int step_k = 32;                                  // of a warp: 16 bytes of a row from each of four lanes
inline constexpr int most_slots = 512;
inline constexpr int most_decode_experts = row_threads;  // a thread looks after each

struct ExpertCalls {
  const int* experts_of;  // [slots]
  int slots, experts, top_k;
  bool all_experts;  // also those that no token chose
};

// The active experts and the slots of each; made by every block for itself.
struct ActiveExperts {
  int count;
  int expert[most_decode_experts];
  int begin[most_decode_experts + 1];  // of the active expert's slots
  int slots[most_slots];
  int counts[most_decode_experts], next[most_decode_experts], of_warps[2][row_warps];

  // By all threads of the block; ends with a barrier.
  __device__ void find(const ExpertCalls& calls) {
    const int e = static_cast<int>(threadIdx.x), lane = e % device::warp_size, warp = e / device::warp_size;
    counts[e] = 0;
    __syncthreads();
    for (int s = e; s < calls.slots; s += row_threads) atomicAdd(&counts[calls.experts_of[s]], 1);
    __syncthreads();
    const bool is_active = e < calls.experts && (counts[e] > 0 || calls.all_experts);
    const unsigned active = __ballot_sync(device::whole_warp, is_active);
    int through = counts[e];
#pragma unroll
    for (int offset = 1; offset < device::warp_size; offset *= 2) {
      const int below = __shfl_up_sync(device::whole_warp, through, offset);
      if (lane >= offset) through += below;
    }
    if (lane == device::warp_size - 1) {
      of_warps[0][warp] = __popc(active);
      of_warps[1][warp] = through;
    }
    __syncthreads();
    int place = __popc(active & ((1u << lane) - 1)), first = through - counts[e];
    for (int w = 0; w < warp; ++w) {
      place += of_warps[0][w];
      first += of_warps[1][w];
    }
    next[e] = first;
    if (is_active) {
      expert[place] = e;
      begin[place] = first;
    }
    if (e == row_threads - 1) {
      count = place + (is_active ? 1 : 0);
      begin[count] = calls.slots;
    }
    __syncthreads();
    for (int s = e; s < calls.slots; s += row_threads) slots[atomicAdd(&next[calls.experts_of[s]], 1)] = s;
    __syncthreads();
  }
};

// sums[t] += 16 rows of weights times 8 tokens for each of `tiles` groups of tokens, over `steps` steps of K. `low` and `high`
// are the lane's place in the rows lane / 4 and lane / 4 + 8, `token[t]` its place in token lane / 4 of group t. Sums of a token
// that is not there are nobody's, so that any other may stand for it.
template <int tiles, int in_flight>
__device__ __forceinline__ void multiply_rows(float (&sums)[tiles][4], const uint4* low, const uint4* high, const uint4* tokens,
                                              const int (&token)[tiles], int steps) {
  constexpr int pitch = step_k / 8;
#pragma unroll 1
  for (int step = 0; step < steps; step += in_flight) {
    uint4 a[in_flight][2];
#pragma unroll
    for (int i = 0; i < in_flight; ++i) {
      a[i][0] = device::load_once(low + (step + i) * pitch);
      a[i][1] = device::load_once(high + (step + i) * pitch);
    }
#pragma unroll
    for (int i = 0; i < in_flight; ++i) {
      if constexpr (tiles > 1) asm volatile("" ::: "memory");  // tokens of one step at a time: registers are for the weights
      const unsigned first[4] = {a[i][0].x, a[i][1].x, a[i][0].y, a[i][1].y};
      const unsigned second[4] = {a[i][0].z, a[i][1].z, a[i][0].w, a[i][1].w};
#pragma unroll
      for (int t = 0; t < tiles; ++t) {
        const uint4 b = tokens[token[t] + (step + i) * pitch];
        device::mma_bf16(sums[t], first, b.x, b.y);
        device::mma_bf16(sums[t], second, b.z, b.w);
      }
    }
  }
}

}  // namespace aisp::ch17
