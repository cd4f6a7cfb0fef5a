// SPDX-License-Identifier: Apache-2.0
// The kernels of fp8_training_step between its products: SwiGLU forward and backward, largest magnitudes, and tensors of bf16
// that become FP8 with one scale, along rows, along columns or both ways at once.
#pragma once
#include <cuda_fp8.h>
#include <aisp/launch.hpp>

#include <bit>
#include <type_traits>

#include "quantized_rows.cuh"
#include "transposed_codes.cuh"

namespace aisp::ch19 {

using shared::bf16, shared::packet;
using e4m3 = __nv_fp8_e4m3;
using e5m2 = __nv_fp8_e5m2;
template <class Code>
inline constexpr float largest_of = std::is_same_v<Code, e4m3> ? largest_e4m3 : 57344.0f;

// Return the factor for values up to `maximum`, the largest power of two with which none saturates, so that scaling rounds
// nothing and a maximum that is off by a rounding gives the same codes; and the factor that gives the values back.
template <class Code>
__host__ __device__ inline float scale_of(float maximum) {
  constexpr float most = 0x1p100f;
  const float ratio = maximum > 0 ? largest_of<Code> / maximum : 1;
  return std::bit_cast<float>(std::bit_cast<unsigned>(ratio < most ? ratio : most) & 0x7F800000u);
}
template <class Code>
__host__ __device__ inline float inverse_of(float maximum) {
  return 1 / scale_of<Code>(maximum);
}

// On the device. `maximum`: this tensor's, or that of earlier ones, and then `record` gets this one's and `beyond` counts the
// magnitudes that are larger than it; they may saturate. `inverse` is for the products.
struct Scaling {
  const float* maximum;
  float* inverse;
  float* record = nullptr;
  unsigned* beyond = nullptr;
};

// By all 256 threads of a block; magnitudes are ordered as their bits are.
__device__ __forceinline__ void record_maximum(float largest, float* to) {
  __shared__ float of_warps[device::largest_block_in_warps];
  largest = device::block_max(largest, 0.0f, of_warps);
  if (threadIdx.x == 0) atomicMax(reinterpret_cast<unsigned*>(to), __float_as_uint(largest));
}

template <class Code>
struct Quantizer {
  Scaling scaling;
  float maximum, scale, largest = 0;

  __device__ __forceinline__ explicit Quantizer(const Scaling& of)
      : scaling{of}, maximum{*of.maximum}, scale{scale_of<Code>(maximum)} {
    if (blockIdx.x == 0 && threadIdx.x == 0) *of.inverse = 1 / scale;
  }
  __device__ __forceinline__ uint2 codes(const float (&x)[packet]) {
    constexpr auto type = std::is_same_v<Code, e4m3> ? __NV_E4M3 : __NV_E5M2;
    const auto pair = [&](int k) {
      return unsigned{__nv_cvt_float2_to_fp8x2(make_float2(x[k] * scale, x[k + 1] * scale), __NV_SATFINITE, type)};
    };
    if (scaling.record != nullptr) {
      const float of_packet = largest_magnitude(x);
      largest = fmaxf(largest, of_packet);
      if (scaling.beyond != nullptr && of_packet > maximum && maximum > 0) count(x);
    }
    return make_uint2(pair(0) | pair(2) << 16, pair(4) | pair(6) << 16);
  }
  // By all threads.
  __device__ __forceinline__ void finish() const {
    if (scaling.record != nullptr) record_maximum(largest, scaling.record);
  }

 private:
  __device__ void count(const float (&x)[packet]) const {
    unsigned beyond = 0;
#pragma unroll
    for (const float value : x) beyond += fabsf(value) > maximum;
    atomicAdd(scaling.beyond, beyond);
  }
};

static __global__ __launch_bounds__(transposing_threads) void amax_kernel(const uint4* __restrict__ x, std::size_t packets,
                                                                          float* amax) {
  float largest = 0;
#pragma unroll 4
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < packets;
       i += std::size_t{gridDim.x} * blockDim.x) {
    float values[packet];
    shared::unpack(x[i], values);
    largest = fmaxf(largest, largest_magnitude(values));
  }
  record_maximum(largest, amax);
}

// Finds for each of several tensors the largest magnitude that `steps` earlier steps have seen: history[tensor][step].
static __global__ void history_kernel(const float* __restrict__ history, unsigned steps, float* __restrict__ maxima) {
  float largest = 0;
  for (unsigned s = 0; s < steps; ++s) largest = fmaxf(largest, history[threadIdx.x * steps + s]);
  maxima[threadIdx.x] = largest;
}

template <class Code>
__global__ __launch_bounds__(transposing_threads) void cast_kernel(const uint4* __restrict__ x, std::size_t packets,
                                                                   uint2* __restrict__ codes, Scaling scaling) {
  Quantizer<Code> quantizer{scaling};
#pragma unroll 4
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < packets;
       i += std::size_t{gridDim.x} * blockDim.x) {
    float values[packet];
    shared::unpack(x[i], values);
    codes[i] = quantizer.codes(values);
  }
  quantizer.finish();
}

// Blocks are tiles, row by row.
struct TileOfBlock {
  unsigned top, left;
  __device__ __forceinline__ explicit TileOfBlock(unsigned columns) {
    const unsigned across = (columns + transposed_tile - 1) / transposed_tile;
    top = blockIdx.x / across * transposed_tile;
    left = blockIdx.x % across * transposed_tile;
  }
};

static __global__ __launch_bounds__(transposing_threads) void transpose_kernel(const uint2* __restrict__ codes,
                                                                               TransposedShape shape,
                                                                               unsigned char* __restrict__ transposed) {
  __shared__ __align__(16) TransposedTile tile;
  const TilePlace at;
  const TileOfBlock block{shape.columns};
  const unsigned row = block.top + at.down * packet, column = block.left + at.across * packet;
  uint2 rows[packet] = {};
  if (row < shape.rows && column < shape.columns) {
#pragma unroll
    for (unsigned r = 0; r < packet; ++r) rows[r] = codes[(std::size_t{row + r} * shape.columns + column) / packet];
  }
  put_transposed(tile, at, rows);
  __syncthreads();
  store_transposed(tile, block.top, block.left, shape, transposed);
}

__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1, 1 + __expf(-x)); }  // 0 where exp overflows

// silu(gate) * up.
__device__ __forceinline__ void swiglu(const uint4& gates, const uint4& ups, float (&x)[packet]) {
  float gate[packet];
  shared::unpack(gates, gate);
  shared::unpack(ups, x);
#pragma unroll
  for (int k = 0; k < packet; ++k) x[k] *= gate[k] * sigmoid(gate[k]);
}
// The gradients of both, of that of the product. No product is part of a sum that a compiler could contract here or there.
__device__ __forceinline__ void swiglu_backward(const uint4& gates, const uint4& ups, const uint4& gradients,
                                                float (&of_gate)[packet], float (&of_up)[packet]) {
  float gate[packet], up[packet], d[packet];
  shared::unpack(gates, gate);
  shared::unpack(ups, up);
  shared::unpack(gradients, d);
#pragma unroll
  for (int k = 0; k < packet; ++k) {
    const float s = sigmoid(gate[k]), slope = fmaf(s, fmaf(-gate[k], s, gate[k]), s);
    of_gate[k] = d[k] * up[k] * slope;
    of_up[k] = d[k] * (gate[k] * s);
  }
}

// Rows of h, and of its gradient, are gates and then as many values to be gated.
static __global__ __launch_bounds__(transposing_threads) void swiglu_kernel(const uint4* __restrict__ h, uint4* __restrict__ a,
                                                                            unsigned row_packets, unsigned packets) {
  const unsigned i = blockIdx.x * transposing_threads + threadIdx.x;
  if (i >= packets) return;
  const std::size_t at = i + std::size_t{i / row_packets} * row_packets;
  float x[packet];
  swiglu(h[at], h[at + row_packets], x);
  a[i] = shared::pack(x);
}
static __global__ __launch_bounds__(transposing_threads) void swiglu_backward_kernel(const uint4* __restrict__ h,
                                                                                     const uint4* __restrict__ da,
                                                                                     uint4* __restrict__ dh, unsigned row_packets,
                                                                                     unsigned packets) {
  const unsigned i = blockIdx.x * transposing_threads + threadIdx.x;
  if (i >= packets) return;
  const std::size_t at = i + std::size_t{i / row_packets} * row_packets;
  float of_gate[packet], of_up[packet];
  swiglu_backward(h[at], h[at + row_packets], da[i], of_gate, of_up);
  dh[at] = shared::pack(of_gate);
  dh[at + row_packets] = shared::pack(of_up);
}

// The elements that both_ways_kernel quantizes: eight of a row, of each of its `parts`, which lie side by side.
struct Stored {
  static constexpr unsigned parts = 1;
  using Loaded = uint4;
  const uint4* x;
  __device__ __forceinline__ Loaded load(std::size_t row, unsigned of_row, unsigned row_packets) const {
    return x[row * row_packets + of_row];
  }
  static __device__ __forceinline__ void compute(const Loaded& from, float (&to)[1][packet]) { shared::unpack(from, to[0]); }
};
// Rounded to bf16 as where they are stored, so that the codes are the same.
__device__ __forceinline__ void round_to_bf16(float (&x)[packet]) { shared::unpack(shared::pack(x), x); }
struct SwigluOf {
  static constexpr unsigned parts = 1;
  struct Loaded {
    uint4 gate, up;
  };
  const uint4* h;
  __device__ __forceinline__ Loaded load(std::size_t row, unsigned of_row, unsigned row_packets) const {
    const uint4* const gates = h + row * 2 * row_packets + of_row;
    return {gates[0], gates[row_packets]};
  }
  static __device__ __forceinline__ void compute(const Loaded& from, float (&to)[1][packet]) {
    swiglu(from.gate, from.up, to[0]);
    round_to_bf16(to[0]);
  }
};
struct SwigluGradient {
  static constexpr unsigned parts = 2;
  struct Loaded {
    SwigluOf::Loaded h;
    uint4 da;
  };
  SwigluOf of;
  const uint4* da;
  __device__ __forceinline__ Loaded load(std::size_t row, unsigned of_row, unsigned row_packets) const {
    return {of.load(row, of_row, row_packets), da[row * row_packets + of_row]};
  }
  static __device__ __forceinline__ void compute(const Loaded& from, float (&to)[2][packet]) {
    swiglu_backward(from.h.gate, from.h.up, from.da, to[0], to[1]);
    round_to_bf16(to[0]);
    round_to_bf16(to[1]);
  }
};

// codes[row][part][column], and transposed[part][column][row]. The shape is that of a part.
template <class Code, class Source>
__global__ __launch_bounds__(transposing_threads) void both_ways_kernel(Source source, TransposedShape shape,
                                                                        uint2* __restrict__ codes,
                                                                        unsigned char* __restrict__ transposed, Scaling scaling) {
  constexpr unsigned parts = Source::parts, at_once = 4;  // rows that are under way
  __shared__ __align__(16) TransposedTile tiles[parts];
  const TilePlace at;
  const TileOfBlock block{shape.columns};
  const unsigned row = block.top + at.down * packet, column = block.left + at.across * packet;
  const unsigned row_packets = shape.columns / packet;
  Quantizer<Code> quantizer{scaling};
  uint2 rows[parts][packet] = {};
  if (row < shape.rows && column < shape.columns) {
#pragma unroll
    for (unsigned first = 0; first < packet; first += at_once) {
      typename Source::Loaded loaded[at_once];
#pragma unroll
      for (unsigned r = 0; r < at_once; ++r) loaded[r] = source.load(row + first + r, column / packet, row_packets);
#pragma unroll
      for (unsigned r = first; r < first + at_once; ++r) {
        float values[parts][packet];
        Source::compute(loaded[r - first], values);
#pragma unroll
        for (unsigned p = 0; p < parts; ++p) {
          rows[p][r] = quantizer.codes(values[p]);
          codes[(std::size_t{row + r} * parts + p) * row_packets + column / packet] = rows[p][r];
        }
      }
    }
  }
#pragma unroll
  for (unsigned p = 0; p < parts; ++p) put_transposed(tiles[p], at, rows[p]);
  __syncthreads();
#pragma unroll
  for (unsigned p = 0; p < parts; ++p)
    store_transposed(tiles[p], block.top, block.left, shape, transposed + std::size_t{p} * shape.columns * shape.pitch);
  quantizer.finish();
}

}  // namespace aisp::ch19
