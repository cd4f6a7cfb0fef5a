// SPDX-License-Identifier: Apache-2.0
// The library's kernel: sums up rows of a function of two tensors. `loss` is of eight pairs of bf16, 16 bytes of each tensor.
#pragma once
#include <aisp/device/reduce.cuh>

namespace aisp::ch14 {

inline constexpr unsigned loss_threads = 256;

// Sums a function of one pair of elements in a fixed order.
template <class Loss>
__device__ __forceinline__ float loss_of_eight(const uint4& a, const uint4& b, Loss loss) {
  const unsigned as[4] = {a.x, a.y, a.z, a.w}, bs[4] = {b.x, b.y, b.z, b.w};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum = __fadd_rn(sum, loss(__uint_as_float(as[i] << 16), __uint_as_float(bs[i] << 16)));
    sum = __fadd_rn(sum, loss(__uint_as_float(as[i] & 0xFFFF0000u), __uint_as_float(bs[i] & 0xFFFF0000u)));
  }
  return sum;
}

// One row a block.
template <class Loss>
__device__ __forceinline__ void sum_row(const uint4* __restrict__ a, const uint4* __restrict__ b, float* __restrict__ sums,
                                        unsigned row_packets, Loss loss) {
  __shared__ float parts[device::largest_block_in_warps];
  a += std::size_t{blockIdx.x} * row_packets;
  b += std::size_t{blockIdx.x} * row_packets;
  float sum = 0;
#pragma unroll 4
  for (unsigned i = threadIdx.x; i < row_packets; i += loss_threads) sum = __fadd_rn(sum, loss(a[i], b[i]));
  sum = device::block_sum(sum, parts);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

}  // namespace aisp::ch14
