// SPDX-License-Identifier: Apache-2.0
// Attention of one token in float64, on the GPU and without anything clever, for contexts of which a CPU takes minutes.
#pragma once
#include <cuda_bf16.h>
#include <aisp/device/reduce.cuh>

#include <cstddef>

namespace aisp::ch16 {

// A block a query head. q: [row][head_size], k and v: [row / group][token][head_size], scores: [row][token].
constexpr int reference_threads = 1024;
template <int head_size, int group>
__global__ __launch_bounds__(reference_threads) void attention_in_float64_kernel(const __nv_bfloat16* q, const __nv_bfloat16* k,
                                                                                 const __nv_bfloat16* v, unsigned tokens,
                                                                                 double* scores, double* o) {
  constexpr unsigned parts = reference_threads / head_size;
  __shared__ double values[parts][head_size], sums[parts], maxima[device::largest_block_in_warps];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, d = threadIdx.x % head_size, part = threadIdx.x / head_size;
  const __nv_bfloat16* const query = q + std::size_t{blockIdx.x} * head_size;
  const std::size_t first = std::size_t{blockIdx.x / group} * tokens * head_size;
  double* const own = scores + std::size_t{blockIdx.x} * tokens;
  double maximum = -INFINITY;
  for (unsigned token = warp; token < tokens; token += reference_threads / 32) {
    double dot = 0;
    for (unsigned i = lane; i < head_size; i += 32)
      dot += double{__bfloat162float(query[i])} * double{__bfloat162float(k[first + std::size_t{token} * head_size + i])};
    dot = device::warp_sum(dot) / sqrt(double{head_size});
    if (lane == 0) own[token] = dot;
    maximum = fmax(maximum, dot);
  }
  maximum = device::block_max(maximum, -double{INFINITY}, maxima);
  double value = 0, sum = 0;
  for (unsigned token = part; token < tokens; token += parts) {
    const double weight = exp(own[token] - maximum);
    sum += weight;
    value += weight * double{__bfloat162float(v[first + std::size_t{token} * head_size + d])};
  }
  values[part][d] = value;
  if (d == 0) sums[part] = sum;
  __syncthreads();
  if (part > 0) return;
  for (unsigned other = 1; other < parts; ++other) value += values[other][d], sum += sums[other];
  o[std::size_t{blockIdx.x} * head_size + d] = value / sum;
}

}  // namespace aisp::ch16
