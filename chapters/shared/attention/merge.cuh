// SPDX-License-Identifier: Apache-2.0
// States of attention over parts of the keys, each a normalised result and its log-sum-exp, are merged into that over all, always
// in the same order.
#pragma once
#include "decode.cuh"

namespace aisp::attention {

constexpr int merge_threads = 128;

// A row, by a warp: of the states from `first` to `last` - 1, [state][row][head_size] and [state][row], `rows` of them in each.
template <int head_size, class In, class Out>
__device__ __forceinline__ void merge_row(const In* parts, const float* part_log_sums, int rows, int row, int first, int last,
                                          Out* to, float* log_sum) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto at = [&](int state) { return static_cast<std::size_t>(state) * rows + row; };
  float maximum = -infinity, sum = 0, values[head_size / 32] = {};
  for (int state = first + lane; state < last; state += 32) maximum = fmaxf(maximum, part_log_sums[at(state)]);
#pragma unroll
  for (int i = 16; i > 0; i /= 2) maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, i));
  // Each lane has the weight of one of 32 states, so that results are asked for without waiting for weights.
  for (int begin = first; begin < last; begin += 32) {
    const float own = begin + lane < last ? (part_log_sums[at(begin + lane)] - base_of(maximum)) * log2_e : -infinity;
    const float weights = device::exp2_approximate(own);
    const int count = last - begin < 32 ? last - begin : 32;
#pragma unroll 8
    for (int i = 0; i < count; ++i) {
      const float weight = __shfl_sync(~0u, weights, i);
      const In* from = parts + at(begin + i) * head_size + lane * (head_size / 32);
      sum += weight;
#pragma unroll
      for (int j = 0; j < head_size / 32; ++j) values[j] += weight * widened(from[j]);
    }
  }
  store_row(to + lane * (head_size / 32), values, reciprocal(sum));
  if (log_sum != nullptr && lane == 0) *log_sum = log_sum_exp(maximum * log2_e, sum, 1);
}

// A warp a row, `rows` of them in a state. The states of a sequence are those from splits.first_state(sequence) to that of the
// next; blockIdx.y is the sequence.
template <int head_size, class Splits, class In, class Out>
__global__ __launch_bounds__(merge_threads) void merge_states(Splits splits, const In* parts, const float* part_log_sums,
                                                              int rows, Out* o, float* log_sums) {
  const int sequence = static_cast<int>(blockIdx.y);
  const int row = static_cast<int>(blockIdx.x * (merge_threads / 32) + threadIdx.x / 32);
  if (row >= rows) return;
  const std::size_t to = static_cast<std::size_t>(sequence) * rows + row;
  merge_row<head_size>(parts, part_log_sums, rows, row, splits.first_state(sequence), splits.first_state(sequence + 1),
                       o + to * head_size, log_sums == nullptr ? nullptr : log_sums + to);
}

}  // namespace aisp::attention
