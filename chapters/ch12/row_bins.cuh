// SPDX-License-Identifier: Apache-2.0
// Rows of a matrix in compressed rows, sorted by length into those for a block, for a warp and for a thread.
#pragma once
#include <aisp/device/reduce.cuh>

namespace aisp::ch12 {

constexpr int bin_threads = 256;
constexpr int most_of_thread = 16, most_of_warp = 2048;  // entries of a row that one thread, one warp takes

// Rows by length, each bin a list as long as there are rows; in no order.
struct Bins {
  int *of_blocks, *of_warps, *of_threads;
  int* counts;  // of the three lists
};

static __global__ __launch_bounds__(bin_threads) void bin_rows_kernel(const int* offsets, int rows, Bins bins) {
  const int row = static_cast<int>(blockIdx.x * bin_threads + threadIdx.x);
  const int length = row < rows ? offsets[row + 1] - offsets[row] : -1;
  const int bin = length < 0 ? -1 : length <= most_of_thread ? 2 : length <= most_of_warp ? 1 : 0;
  int* const lists[] = {bins.of_blocks, bins.of_warps, bins.of_threads};
#pragma unroll
  for (int b = 0; b < 3; ++b) {
    const unsigned mine = __ballot_sync(device::whole_warp, bin == b);
    if (mine == 0) continue;
    const unsigned lane = device::lane_index();
    int first = lane == 0 ? atomicAdd(&bins.counts[b], __popc(mine)) : 0;
    first = __shfl_sync(device::whole_warp, first, 0);
    if (bin == b) lists[b][first + __popc(mine & ((1u << lane) - 1))] = row;
  }
}

}  // namespace aisp::ch12
