// SPDX-License-Identifier: Apache-2.0
// The list of row blocks for sequences whose lengths only device memory knows, made by one block of threads before the forward
// kernel, those with the most tiles of keys first.
#pragma once
#include "mask.cuh"

namespace aisp::attention {

constexpr int list_threads = 1024, list_buckets = 1024;  // blocks with so many tiles or more are equal
constexpr int list_shared_bytes = list_buckets * static_cast<int>(sizeof(int));

// `list` has room for rows / 128 + sequences entries. What is equally long stands in no particular order.
template <class Mask, class Keys>
__global__ __launch_bounds__(list_threads) void list_row_blocks(Mask mask, Keys keys, int sequences, int2* list, int* count) {
  extern __shared__ __align__(1024) unsigned char memory[];
  int* const places = reinterpret_cast<int*>(memory);
  constexpr int block_rows = 128;
  const int t = static_cast<int>(threadIdx.x);
  const auto each = [&](auto act) {
    for (int sequence = t; sequence < sequences; sequence += list_threads) {
      const Lengths lengths = keys.lengths(sequence);
      for (int row = 0; row < lengths.queries; row += block_rows) {
        const int tiles = tiles_of(mask, sequence, 0, row, block_rows, lengths).count;
        act(sequence, row, list_buckets - 1 - (tiles < list_buckets ? tiles : list_buckets - 1));
      }
    }
  };
  for (int i = t; i < list_buckets; i += list_threads) places[i] = 0;
  __syncthreads();
  each([&](int, int, int bucket) { atomicAdd(&places[bucket], 1); });
  __syncthreads();
  if (t == 0) {
    int sum = 0;
    for (int i = 0; i < list_buckets; ++i) {
      const int here = places[i];
      places[i] = sum;
      sum += here;
    }
    *count = sum;
  }
  __syncthreads();
  each([&](int sequence, int row, int bucket) { list[atomicAdd(&places[bucket], 1)] = int2{sequence, row}; });
}

}  // namespace aisp::attention
