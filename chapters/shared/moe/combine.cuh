// SPDX-License-Identifier: Apache-2.0
// The way back from rows of experts to tokens: a token gathers the rows of its slots, adds them up in registers, each times its
// weight, and is written once. No atomics, and the same bits every time.
#pragma once
#include "rows.cuh"

namespace aisp::moe {

// A block for each token; a thread has one 16-byte packet at a time of each of the top_k rows. A slot whose row is -1 counts
// nothing, and its row is not read.
template <int top_k>
__global__ void gather_reduce_kernel(const uint4* rows, const int* row_of_slot, const float* weights, uint4* out, int packets) {
  const std::size_t token = blockIdx.x;
  int row[top_k];
  float weight[top_k];
#pragma unroll
  for (int k = 0; k < top_k; ++k) {
    row[k] = row_of_slot[token * top_k + k];
    weight[k] = row[k] < 0 ? 0 : weights[token * top_k + k];
  }
  for (int i = static_cast<int>(threadIdx.x); i < packets; i += static_cast<int>(blockDim.x)) {
    uint4 loaded[top_k];
#pragma unroll
    for (int k = 0; k < top_k; ++k)
      loaded[k] = row[k] < 0 ? uint4{0, 0, 0, 0} : rows[static_cast<std::size_t>(row[k]) * packets + i];
    float sum[shared::packet] = {};
#pragma unroll
    for (int k = 0; k < top_k; ++k) {
      float x[shared::packet];
      shared::unpack(loaded[k], x);
#pragma unroll
      for (int j = 0; j < shared::packet; ++j) sum[j] = fmaf(weight[k], x[j], sum[j]);
    }
    out[token * packets + i] = shared::pack(sum);
  }
}

}  // namespace aisp::moe
