// SPDX-License-Identifier: Apache-2.0
// The kernels of a model's block between its products, in bf16 with fp32 inside: RMSNorm and SwiGLU, forward and backward. Rows
// are multiples of 8 elements.
#pragma once
#include <aisp/device/reduce.cuh>

#include <cstddef>

#include "rows.cuh"
#include "shapes.hpp"

namespace aisp::training {

using shared::packet;

inline constexpr unsigned row_threads = 256, most_packets = 4;  // of a thread: rows have up to 8192 elements
inline constexpr std::size_t widest_row = std::size_t{row_threads} * most_packets * packet;
inline constexpr float norm_epsilon = 1e-5f;

// Normalized rows times `weights`, and 1 / rms of each. A block has a row.
static __global__ __launch_bounds__(row_threads) void rms_norm_kernel(const uint4* __restrict__ x,
                                                                      const uint4* __restrict__ weights, uint4* __restrict__ out,
                                                                      float* __restrict__ inverse_rms, unsigned packets) {
  __shared__ float of_warps[device::largest_block_in_warps];
  const std::size_t row = std::size_t{blockIdx.x} * packets;
  float values[most_packets][packet], squares = 0;
#pragma unroll
  for (unsigned p = 0; p < most_packets; ++p) {
    const unsigned i = p * row_threads + threadIdx.x;
    shared::unpack(i < packets ? x[row + i] : make_uint4(0, 0, 0, 0), values[p]);
    squares += shared::sum_of_squares(values[p]);
  }
  squares = device::block_sum(squares, of_warps);
  const float inverse = rsqrtf(squares / static_cast<float>(packets * packet) + norm_epsilon);
#pragma unroll
  for (unsigned p = 0; p < most_packets; ++p) {
    const unsigned i = p * row_threads + threadIdx.x;
    if (i >= packets) continue;
    float by[packet];
    shared::unpack(weights[i], by);
#pragma unroll
    for (int k = 0; k < packet; ++k) values[p][k] *= inverse * by[k];
    out[row + i] = shared::pack(values[p]);
  }
  if (threadIdx.x == 0) inverse_rms[blockIdx.x] = inverse;
}

// dx = `passed` + the gradient of x through the norm, and each block's sums of the gradient of the weights:
// partials[block][column]. `passed` is what a residual connection hands on, or null.
static __global__ __launch_bounds__(row_threads) void rms_norm_backward_kernel(const uint4* __restrict__ x,
                                                                               const uint4* __restrict__ weights,
                                                                               const float* __restrict__ inverse_rms,
                                                                               const uint4* __restrict__ dy, const uint4* passed,
                                                                               uint4* dx, float4* __restrict__ partials,
                                                                               unsigned rows, unsigned packets) {
  __shared__ float of_warps[device::largest_block_in_warps];
  float sums[most_packets][packet] = {};
  for (unsigned r = blockIdx.x; r < rows; r += gridDim.x) {
    const std::size_t row = std::size_t{r} * packets;
    const float inverse = inverse_rms[r];
    float normed[most_packets][packet], scaled[most_packets][packet], dot = 0;
#pragma unroll
    for (unsigned p = 0; p < most_packets; ++p) {
      const unsigned i = p * row_threads + threadIdx.x;
      const bool exists = i < packets;
      float by[packet];
      shared::unpack(exists ? x[row + i] : make_uint4(0, 0, 0, 0), normed[p]);
      shared::unpack(exists ? dy[row + i] : make_uint4(0, 0, 0, 0), scaled[p]);
      shared::unpack(exists ? weights[i] : make_uint4(0, 0, 0, 0), by);
#pragma unroll
      for (int k = 0; k < packet; ++k) {
        normed[p][k] *= inverse;
        sums[p][k] = fmaf(scaled[p][k], normed[p][k], sums[p][k]);
        scaled[p][k] *= by[k];
        dot = fmaf(scaled[p][k], normed[p][k], dot);
      }
    }
    dot = device::block_sum(dot, of_warps) / static_cast<float>(packets * packet);
#pragma unroll
    for (unsigned p = 0; p < most_packets; ++p) {
      const unsigned i = p * row_threads + threadIdx.x;
      if (i >= packets) continue;
      float result[packet] = {};
      if (passed != nullptr) shared::unpack(passed[row + i], result);
#pragma unroll
      for (int k = 0; k < packet; ++k) result[k] = fmaf(inverse, fmaf(-normed[p][k], dot, scaled[p][k]), result[k]);
      dx[row + i] = shared::pack(result);
    }
  }
#pragma unroll
  for (unsigned p = 0; p < most_packets; ++p) {
    const unsigned i = p * row_threads + threadIdx.x;
    if (i >= packets) continue;
    float4* const to = partials + (std::size_t{blockIdx.x} * packets + i) * 2;
    to[0] = make_float4(sums[p][0], sums[p][1], sums[p][2], sums[p][3]);
    to[1] = make_float4(sums[p][4], sums[p][5], sums[p][6], sums[p][7]);
  }
}

// Adds the blocks' partial sums in their order. A thread has a column.
static __global__ __launch_bounds__(row_threads) void sum_partials_kernel(const float* __restrict__ partials,
                                                                          float* __restrict__ sums, unsigned blocks,
                                                                          unsigned columns) {
  const unsigned column = blockIdx.x * row_threads + threadIdx.x;
  if (column >= columns) return;
  float sum = 0;
#pragma unroll 8
  for (unsigned b = 0; b < blocks; ++b) sum += partials[std::size_t{b} * columns + column];
  sums[column] = sum;
}

__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1, 1 + __expf(-x)); }  // 0 where exp overflows

// silu(gate) * up.
__device__ __forceinline__ void swiglu(const float (&gate)[packet], const float (&up)[packet], float (&product)[packet]) {
#pragma unroll
  for (int k = 0; k < packet; ++k) product[k] = up[k] * (gate[k] * sigmoid(gate[k]));
}

// Rows of `h` are gates and then as many values to be gated. A thread has a packet of the product.
static __global__ __launch_bounds__(row_threads) void swiglu_kernel(const uint4* __restrict__ h, uint4* __restrict__ product,
                                                                    unsigned row_packets, unsigned packets) {
  const unsigned i = blockIdx.x * row_threads + threadIdx.x;
  if (i >= packets) return;
  const std::size_t at = i + std::size_t{i / row_packets} * row_packets;
  float gate[packet], up[packet], result[packet];
  shared::unpack(h[at], gate);
  shared::unpack(h[at + row_packets], up);
  swiglu(gate, up, result);
  product[i] = shared::pack(result);
}

// The gradients of gates and ups, which may take the place of h. With a place for it, the product is computed again on the way.
static __global__ __launch_bounds__(row_threads) void swiglu_backward_kernel(const uint4* h, const uint4* __restrict__ d_product,
                                                                             uint4* dh, uint4* __restrict__ product,
                                                                             unsigned row_packets, unsigned packets) {
  const unsigned i = blockIdx.x * row_threads + threadIdx.x;
  if (i >= packets) return;
  const std::size_t at = i + std::size_t{i / row_packets} * row_packets;
  float gate[packet], up[packet], d[packet], of_gate[packet], of_up[packet];
  shared::unpack(h[at], gate);
  shared::unpack(h[at + row_packets], up);
  shared::unpack(d_product[i], d);
  if (product != nullptr) {
    swiglu(gate, up, of_up);
    product[i] = shared::pack(of_up);
  }
#pragma unroll
  for (int k = 0; k < packet; ++k) {
    const float s = sigmoid(gate[k]), slope = fmaf(s, fmaf(-gate[k], s, gate[k]), s);
    of_gate[k] = d[k] * up[k] * slope;
    of_up[k] = d[k] * (gate[k] * s);
  }
  dh[at] = shared::pack(of_gate);
  dh[at + row_packets] = shared::pack(of_up);
}

}  // namespace aisp::training
