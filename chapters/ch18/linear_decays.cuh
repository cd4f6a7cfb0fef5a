// SPDX-License-Identifier: Apache-2.0
// The decays over a chunk of tokens, in base-2 logarithms: products over a chunk underflow, differences of logarithms do not. A
// decay of 0 counts as 2^-200, which is 0 in fp32 for everything that it lies between, and leaves differences behind it finite.
#pragma once
#include <aisp/device/exponential.cuh>

namespace aisp::ch18 {

template <int tokens>
struct alignas(16) Decays {
  float sums[tokens];        // of the logarithms of the chunk's decays up to and including this one
  float from_begin[tokens];  // the product of these
  float to_end[tokens];      // and of those after it
  float total;               // of all
};

// By a warp: the decays from `from` on, of which `valid` exist; others are 1. The decays of the last few tokens of a chunk may be
// loaded before `to` can be written: `load` and `scan`.
template <int tokens>
struct DecayScan {
  float decays[tokens / 32];

  __device__ __forceinline__ void load(const float* from, int valid) {
    const int first = static_cast<int>(threadIdx.x) % 32 * (tokens / 32);
#pragma unroll
    for (int i = 0; i < tokens / 32; ++i) decays[i] = first + i < valid ? from[first + i] : 1;
  }
  __device__ __forceinline__ void scan(Decays<tokens>& to) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float sums[tokens / 32], before = 0;
#pragma unroll
    for (int i = 0; i < tokens / 32; ++i) before = sums[i] = before + fmaxf(log2f(decays[i]), -200);
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const float other = __shfl_up_sync(~0u, before, distance);
      if (lane >= distance) before += other;
    }
    const float all = __shfl_sync(~0u, before, 31);
    before -= sums[tokens / 32 - 1];
#pragma unroll
    for (int i = 0; i < tokens / 32; ++i) {
      const int token = lane * (tokens / 32) + i;
      const float sum = before + sums[i];
      to.sums[token] = sum;
      to.from_begin[token] = device::exp2_approximate(sum);
      to.to_end[token] = device::exp2_approximate(all - sum);
    }
    if (lane == 0) to.total = device::exp2_approximate(all);
  }
};

}  // namespace aisp::ch18
