// SPDX-License-Identifier: Apache-2.0
// A radix sort in one cooperative kernel, whose number of keys is read on the device: four passes of eight bits, each of which
// counts the digits of the blocks' tiles, adds up what comes before, and stores the keys in their places.
#pragma once
#include <aisp/device/reduce.cuh>

#include <cooperative_groups.h>

#include <cstddef>

namespace aisp::ch12::grid_sort {

constexpr int digits = 256, threads = 512, warps = threads / device::warp_size, most_each = 16, blocks = 128;
constexpr unsigned most_keys = blocks * threads * most_each;

struct Space {
  unsigned counts[warps][digits];  // of each warp, then of those before it
  unsigned before[digits], of_warps[warps];
};

// Counts the digits of a warp's keys, and how many of them come before each key with the same digit.
__device__ inline void rank_keys(unsigned* counts, const unsigned (&key)[most_each], unsigned (&rank)[most_each], int each,
                                 int shift, unsigned first, unsigned count) {
  const unsigned lane = threadIdx.x % device::warp_size, lanes_before = (1u << lane) - 1;
  for (int digit = lane; digit < digits; digit += device::warp_size) counts[digit] = 0;
  __syncwarp();
#pragma unroll
  for (int k = 0; k < most_each; ++k) {
    if (k >= each) break;
    const bool valid = first + k * device::warp_size + lane < count;
    const unsigned digit = key[k] >> shift & (digits - 1);
    const unsigned peers = __match_any_sync(device::whole_warp, valid ? digit : digits);
    const unsigned earlier = counts[digit];
    rank[k] = earlier + __popc(peers & lanes_before);
    __syncwarp();
    if (valid && (peers & lanes_before) == 0) counts[digit] = earlier + __popc(peers);
    __syncwarp();
  }
}

// The sum of the values of the threads before the calling one.
__device__ inline unsigned sum_before(unsigned value, unsigned* of_warps) {
  const unsigned lane = threadIdx.x % device::warp_size, warp = threadIdx.x / device::warp_size;
  unsigned through = value;
#pragma unroll
  for (int offset = 1; offset < device::warp_size; offset *= 2) {
    const unsigned below = __shfl_up_sync(device::whole_warp, through, offset);
    if (lane >= static_cast<unsigned>(offset)) through += below;
  }
  if (lane == device::warp_size - 1) of_warps[warp] = through;
  __syncthreads();
  unsigned before = 0;
  for (unsigned w = 0; w < warp; ++w) before += of_warps[w];
  __syncthreads();
  return before + through - value;
}

// Sorts `count` keys from `in` into `out`, if there are more than `fewest`; in is overwritten. totals: [blocks][digits].
static __global__ __launch_bounds__(threads, 1) void sort_kernel(unsigned* in, unsigned* between, unsigned* out, unsigned* totals,
                                                                 const unsigned* counts, const unsigned* query, unsigned fewest) {
  const unsigned count = counts[*query];
  if (count <= fewest) return;
  __shared__ Space space;
  const auto grid = cooperative_groups::this_grid();
  const int each = static_cast<int>((count + blocks * threads - 1) / (blocks * threads));
  const unsigned lane = threadIdx.x % device::warp_size, warp = threadIdx.x / device::warp_size;
  const unsigned first = (blockIdx.x * warps + warp) * device::warp_size * each;
  unsigned key[most_each], rank[most_each];
  for (int pass = 0; pass < 4; ++pass) {
    const int shift = pass * 8;
    const unsigned* const from = pass % 2 == 0 ? in : between;
    unsigned* const to = pass == 3 ? out : pass % 2 == 0 ? between : in;
#pragma unroll
    for (int k = 0; k < most_each; ++k) {
      const unsigned place = first + k * device::warp_size + lane;
      key[k] = k < each && place < count ? __ldcg(from + place) : ~0u;
    }
    rank_keys(space.counts[warp], key, rank, each, shift, first, count);
    __syncthreads();
    if (threadIdx.x < digits) {
      unsigned sum = 0;
      for (auto& of_warp : space.counts) {
        const unsigned own = of_warp[threadIdx.x];
        of_warp[threadIdx.x] = sum;
        sum += own;
      }
      __stcg(totals + blockIdx.x * digits + threadIdx.x, sum);
    }
    grid.sync();
    unsigned all = 0, earlier = 0;
    if (threadIdx.x < digits)
#pragma unroll 16
      for (unsigned block = 0; block < blocks; ++block) {
        const unsigned own = __ldcg(totals + block * digits + threadIdx.x);
        all += own;
        if (block < blockIdx.x) earlier += own;
      }
    const unsigned smaller = sum_before(all, space.of_warps);
    if (threadIdx.x < digits) space.before[threadIdx.x] = smaller + earlier;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < most_each; ++k) {
      if (k >= each || first + k * device::warp_size + lane >= count) break;
      const unsigned digit = key[k] >> shift & (digits - 1);
      __stcg(to + space.before[digit] + space.counts[warp][digit] + rank[k], key[k]);
    }
    grid.sync();
  }
}

}  // namespace aisp::ch12::grid_sort
