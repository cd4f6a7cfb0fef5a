// SPDX-License-Identifier: Apache-2.0
// The kernels of a radix sort that move nothing: how often each digit of the keys occurs, and where the keys of each tile and
// digit begin in the output. Keys are the bits of fp32 values, sorted with the largest first.
#pragma once
#include "tile_rank.cuh"

namespace aisp::ch07 {

inline constexpr int bits = 8, digits = 1 << bits, passes = 32 / bits;  // of a digit; 32 bits of a key
inline constexpr int tiles_each = 16;  // of a thread in the kernel that scans the counts of tiles
inline constexpr int copies = 8;       // of the counters in shared memory: neighbouring lanes use different ones

// Ascending in the order in which the keys are to come: the largest fp32 first.
__host__ __device__ inline unsigned in_order(unsigned key) { return key >> 31 != 0 ? key : key ^ 0x7FFFFFFF; }
__device__ inline unsigned digit_of(unsigned key, int shift) { return in_order(key) >> shift & (digits - 1); }

struct Counters {
  unsigned counts[digits][copies];

  __device__ void clear() {
    for (int i = threadIdx.x; i < digits * copies; i += rank_threads) counts[i / copies][i % copies] = 0;
  }
  __device__ void add(unsigned digit) { atomicAdd(&counts[digit][threadIdx.x % copies], 1u); }
  __device__ unsigned sum(int digit) const {
    unsigned sum = 0;
    for (int copy = 0; copy < copies; ++copy) sum += counts[digit][copy];
    return sum;
  }
};

// One digit: counts[tile][digit], and their sums over all tiles.
static __global__ __launch_bounds__(rank_threads) void count_tiles_kernel(const unsigned* keys, unsigned* counts,
                                                                          unsigned* totals, int shift) {
  __shared__ Counters counters;
  const unsigned* from = keys + std::size_t{blockIdx.x} * tile_keys + threadIdx.x;
  unsigned key[lane_keys];
#pragma unroll
  for (int k = 0; k < lane_keys; ++k) key[k] = from[k * rank_threads];
  counters.clear();
  __syncthreads();
#pragma unroll
  for (int k = 0; k < lane_keys; ++k) counters.add(digit_of(key[k], shift));
  __syncthreads();
  if (threadIdx.x >= digits) return;
  const unsigned count = counters.sum(threadIdx.x);
  counts[std::size_t{blockIdx.x} * digits + threadIdx.x] = count;
  if (count > 0) atomicAdd(&totals[threadIdx.x], count);
}

// counts[tile][digit] becomes the place in the output of the first key of that tile and digit. A block for each digit.
static __global__ __launch_bounds__(rank_threads) void scan_counts_kernel(unsigned* counts, const unsigned* totals, int tiles) {
  __shared__ unsigned sums[2][rank_warps];
  unsigned carry, total;
  sum_before(threadIdx.x < blockIdx.x ? totals[threadIdx.x] : 0, sums[0], carry);
  for (int first = 0; first < tiles; first += rank_threads * tiles_each) {
    const int mine = first + static_cast<int>(threadIdx.x) * tiles_each;
    const auto place = [&](int i) { return counts + static_cast<std::size_t>(mine + i) * digits + blockIdx.x; };
    unsigned count[tiles_each], sum = 0;
#pragma unroll
    for (int i = 0; i < tiles_each; ++i) sum += count[i] = mine + i < tiles ? *place(i) : 0;
    unsigned before = carry + sum_before(sum, sums[1], total);
#pragma unroll
    for (int i = 0; i < tiles_each; ++i) {
      if (mine + i < tiles) *place(i) = before;
      before += count[i];
    }
    carry += total;
    __syncthreads();
  }
}

// All digits at once: totals[pass][digit].
static __global__ __launch_bounds__(rank_threads) void count_all_kernel(const uint4* keys, unsigned* totals, int quads) {
  __shared__ Counters counters[passes];
  for (Counters& each : counters) each.clear();
  __syncthreads();
  for (int i = blockIdx.x * rank_threads + threadIdx.x; i < quads; i += gridDim.x * rank_threads) {
    const uint4 four = keys[i];
    for (const unsigned key : {four.x, four.y, four.z, four.w})
#pragma unroll
      for (int pass = 0; pass < passes; ++pass) counters[pass].add(digit_of(key, pass * bits));
  }
  __syncthreads();
  for (int i = threadIdx.x; i < passes * digits; i += rank_threads)
    if (const unsigned sum = counters[i / digits].sum(i % digits); sum > 0) atomicAdd(&totals[i], sum);
}

}  // namespace aisp::ch07
