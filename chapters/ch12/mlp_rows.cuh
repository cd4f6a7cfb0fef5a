// SPDX-License-Identifier: Apache-2.0
// The parts that megakernel's variants share: the MLP blocks' weights, their sums in one order, so that all variants have the
// same bits, the kernels of the graphs, and the float64 reference.
#pragma once
#include <cuda_bf16.h>
#include <aisp/device/fence.cuh>
#include <aisp/device/reduce.cuh>

#include <cstddef>

namespace aisp::ch12::mlp {

using bf16 = __nv_bfloat16;

constexpr int threads = 256, warps = threads / device::warp_size;
constexpr int norm_threads = 256, norm_warps = norm_threads / device::warp_size;
constexpr int in_flight = 8;  // packets of 16 bytes that a lane of the graphs' kernels has requested
constexpr int most_width = 4096;
constexpr float epsilon = 1e-5f;

// Row r of gate is followed by row r of up.
struct Network {
  const uint4 *gate_up, *down;
  const float* gains;
  int layers, width;

  __host__ __device__ int hidden() const { return 4 * width; }
  __device__ const uint4* pair(int layer, int row) const {
    return gate_up + (static_cast<std::size_t>(layer) * hidden() + row) * (2 * width / 8);
  }
  __device__ const uint4* down_row(int layer, int row) const {
    return down + (static_cast<std::size_t>(layer) * width + row) * (hidden() / 8);
  }
};

__device__ inline float low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ inline float high(unsigned pair) { return __uint_as_float(pair & 0xFFFF0000); }
__device__ inline float multiply_add(unsigned a, unsigned x, float sum) {
  return fmaf(high(a), high(x), fmaf(low(a), low(x), sum));
}
__device__ inline float multiply_add(const uint4& a, const uint4& x, float sum) {
  return multiply_add(a.w, x.w, multiply_add(a.z, x.z, multiply_add(a.y, x.y, multiply_add(a.x, x.x, sum))));
}

// RMSNorm of the batch's rows by a block of norm_threads threads or more. `x` may have been written by this kernel's other
// blocks.
template <int batch>
__device__ void normalize(const float* x, const Network& n, int layer, bf16* to, float* sums) {
  constexpr int most = most_width / 4 / norm_threads;
  const int thread = static_cast<int>(threadIdx.x);
  const bool takes_part = thread < norm_threads;
  const float4* const gains = reinterpret_cast<const float4*>(n.gains + static_cast<std::size_t>(layer) * n.width);
#pragma unroll
  for (int b = 0; b < batch; ++b) {
    const float4* const row = reinterpret_cast<const float4*>(x + b * n.width);
    float4 values[most];
    float squares = 0;
#pragma unroll
    for (int k = 0; k < most; ++k) {
      const int i = k * norm_threads + thread;
      if (!takes_part || i >= n.width / 4) continue;
      const float4 v = values[k] = __ldcg(row + i);
      squares = fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, squares))));
    }
    squares = device::warp_sum(squares);
    if (takes_part && thread % device::warp_size == 0) sums[thread / device::warp_size] = squares;
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (int w = 0; w < norm_warps; ++w) sum += sums[w];
    const float scale = rsqrtf(sum / static_cast<float>(n.width) + epsilon);
#pragma unroll
    for (int k = 0; k < most; ++k) {
      const int i = k * norm_threads + thread;
      if (!takes_part || i >= n.width / 4) continue;
      const float4 v = values[k], g = gains[i];
      __nv_bfloat162* const out = reinterpret_cast<__nv_bfloat162*>(to + b * n.width + 4 * i);
      out[0] = __floats2bfloat162_rn(v.x * scale * g.x, v.y * scale * g.y);
      out[1] = __floats2bfloat162_rn(v.z * scale * g.z, v.w * scale * g.w);
    }
    __syncthreads();
  }
}

__device__ inline float swiglu(float gate, float up) { return __fdividef(gate, 1 + __expf(-gate)) * up; }

// The lanes' sums of a warp become a hidden value, or are added to the residual, for each of the batch.
template <int batch>
__device__ void store_hidden(const float (&gate)[batch], const float (&up)[batch], const Network& n, int row, bf16* hidden) {
#pragma unroll
  for (int b = 0; b < batch; ++b) {
    const float g = device::warp_sum(gate[b]), u = device::warp_sum(up[b]);
    if (threadIdx.x % device::warp_size == 0) hidden[b * n.hidden() + row] = __float2bfloat16_rn(swiglu(g, u));
  }
}
template <int batch>
__device__ void store_residual(const float (&sums)[batch], const Network& n, int row, const float* from, float* x) {
#pragma unroll
  for (int b = 0; b < batch; ++b) {
    const float sum = device::warp_sum(sums[b]);
    if (threadIdx.x % device::warp_size == 0) x[b * n.width + row] = __ldcg(&from[b * n.width + row]) + sum;
  }
}

// A warp's first packets of a row, requested.
struct Requested {
  uint4 packets[in_flight];
};
__device__ inline Requested request(const uint4* row, int at, int packets) {
  Requested r;
#pragma unroll
  for (int k = 0; k < in_flight; ++k) {
    const int i = at + k * device::warp_size + static_cast<int>(threadIdx.x) % device::warp_size;
    r.packets[k] = i < packets ? row[i] : uint4{};
  }
  return r;
}
// Adds the products of a row with those of the batch. `first`: the row's first packets.
template <int batch>
__device__ void add_row(float (&sums)[batch], Requested r, const uint4* row, int packets, const uint4* with) {
  constexpr int together = in_flight * device::warp_size;
  for (int at = 0; at < packets; at += together) {
    if (at > 0) r = request(row, at, packets);
    __syncwarp();  // keeps the compiler, which saves registers, from moving loads between the sums
#pragma unroll
    for (int k = 0; k < in_flight; ++k) {
      const int i = at + k * device::warp_size + static_cast<int>(threadIdx.x) % device::warp_size;
      if (i >= packets) break;
#pragma unroll
      for (int b = 0; b < batch; ++b) sums[b] = multiply_add(r.packets[k], with[b * packets + i], sums[b]);
    }
  }
}

template <int batch>
__global__ __launch_bounds__(threads) void norm_kernel(Network n, int layer, const float* x, bf16* normalized) {
  __shared__ float sums[norm_warps];
  normalize<batch>(x, n, layer, normalized, sums);
}

enum class Norm { done, in_block };  // by a kernel before, or by every block for itself

// A warp for each row of gate and of up. `early`: the first weights are requested before its predecessor has ended.
template <int batch, Norm norm, bool early>
__global__ __launch_bounds__(threads, batch == 4 ? 2 : 3) void gate_up_kernel(Network n, int layer, const float* x,
                                                                              const bf16* normalized, bf16* hidden) {
  extern __shared__ __align__(16) bf16 own[];
  __shared__ float sums[norm_warps];
  const int row = static_cast<int>(blockIdx.x * warps + threadIdx.x / device::warp_size), packets = n.width / 8;
  const uint4* const weights = n.pair(layer, row);
  Requested first = request(weights, 0, packets);
  if constexpr (early) {
    device::let_dependents_start();
    device::wait_for_previous_kernel();
  }
  if constexpr (norm == Norm::in_block) normalize<batch>(x, n, layer, own, sums);
  const uint4* const with = reinterpret_cast<const uint4*>(norm == Norm::in_block ? own : normalized);
  float gate[batch] = {}, up[batch] = {};
  add_row(gate, first, weights, packets, with);
  add_row(up, request(weights + packets, 0, packets), weights + packets, packets, with);
  store_hidden(gate, up, n, row, hidden);
}

template <int batch, bool early>
__global__ __launch_bounds__(threads, batch == 4 ? 2 : 3) void down_kernel(Network n, int layer, const bf16* hidden,
                                                                           const float* from, float* x) {
  const int row = static_cast<int>(blockIdx.x * warps + threadIdx.x / device::warp_size), packets = n.hidden() / 8;
  const uint4* const weights = n.down_row(layer, row);
  Requested first = request(weights, 0, packets);
  if constexpr (early) {
    device::let_dependents_start();
    device::wait_for_previous_kernel();
  }
  float sums[batch] = {};
  add_row(sums, first, weights, packets, reinterpret_cast<const uint4*>(hidden));
  store_residual(sums, n, row, from, x);
}

// For cuBLAS, whose products of gate and up are neighbours.
static __global__ void swiglu_kernel(const float* products, bf16* hidden, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) hidden[i] = __float2bfloat16_rn(swiglu(products[2 * i], products[2 * i + 1]));
}

static __global__ void widen_kernel(const float* in, double* out, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = static_cast<double>(in[i]);
}
__device__ inline double exact_product(const uint4* row, int columns, const double* x, const float* gains) {
  const bf16* const values = reinterpret_cast<const bf16*>(row);
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x) % device::warp_size; i < columns; i += device::warp_size)
    sum += static_cast<double>(__bfloat162float(values[i])) * x[i] * (gains != nullptr ? static_cast<double>(gains[i]) : 1);
  return device::warp_sum(sum);
}
static __global__ void exact_gate_up_kernel(Network n, int layer, int batch, const double* x, double* hidden) {
  const int row = static_cast<int>(blockIdx.x * warps + threadIdx.x / device::warp_size);
  const float* const gains = n.gains + static_cast<std::size_t>(layer) * n.width;
  for (int b = 0; b < batch; ++b) {
    const double* const values = x + b * n.width;
    double squares = 0;
    for (int i = static_cast<int>(threadIdx.x) % device::warp_size; i < n.width; i += device::warp_size)
      squares += values[i] * values[i];
    const double scale = 1 / sqrt(device::warp_sum(squares) / n.width + static_cast<double>(epsilon));
    const double gate = scale * exact_product(n.pair(layer, row), n.width, values, gains);
    const double up = scale * exact_product(n.pair(layer, row) + n.width / 8, n.width, values, gains);
    if (threadIdx.x % device::warp_size == 0) hidden[b * n.hidden() + row] = gate / (1 + exp(-gate)) * up;
  }
}
static __global__ void exact_down_kernel(Network n, int layer, int batch, const double* hidden, double* x) {
  const int row = static_cast<int>(blockIdx.x * warps + threadIdx.x / device::warp_size);
  for (int b = 0; b < batch; ++b) {
    const double sum = exact_product(n.down_row(layer, row), n.hidden(), hidden + b * n.hidden(), nullptr);
    if (threadIdx.x % device::warp_size == 0) x[b * n.width + row] += sum;
  }
}

}  // namespace aisp::ch12::mlp
