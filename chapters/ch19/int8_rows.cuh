// SPDX-License-Identifier: Apache-2.0
// Rows of activations on their way to INT8 products: columns with a value beyond a threshold are found and taken out, and what is
// left is quantized row by row. And weights, column by column, once before.
#pragma once
#include <cuda_bf16.h>
#include <cstdint>

#include "quantized_rows.cuh"

namespace aisp::ch19 {

using shared::bf16, shared::packet, shared::unpack;
constexpr float outlier_threshold = 6, largest_int8 = 127, least_int8_maximum = 1e-10f;
constexpr unsigned row_threads = 256, most_row_packets = 1024;  // of eight elements
constexpr unsigned list_threads = 1024;

// The outliers' columns: a flag for each column; their numbers, ascending; how many there are.
struct Outliers {
  std::uint8_t* flags;
  int* columns;
  int* count;
  unsigned capacity;  // a multiple of 64, and enough
  __device__ __forceinline__ unsigned padded() const { return (static_cast<unsigned>(*count) + 63) / 64 * 64; }
};

__host__ __device__ inline float int8_scale(float maximum) { return fmaxf(maximum, least_int8_maximum) / largest_int8; }
__host__ __device__ inline float int8_factor(float maximum) { return largest_int8 / fmaxf(maximum, least_int8_maximum); }
__host__ __device__ inline int int8_code(float x, float factor) {
  return static_cast<int>(fminf(fmaxf(rintf(x * factor), -largest_int8), largest_int8));
}
__device__ __forceinline__ uint2 pack_int8(const int (&codes)[packet]) {
  unsigned words[2] = {};
#pragma unroll
  for (int k = 0; k < packet; ++k) words[k / 4] |= (static_cast<unsigned>(codes[k]) & 0xFFu) << k % 4 * 8;
  return make_uint2(words[0], words[1]);
}

// A thread has eight columns of 64 rows.
constexpr unsigned flag_threads = 128, flag_rows = 64;
static __global__ __launch_bounds__(flag_threads) void flag_columns_kernel(const uint4* __restrict__ x, std::uint8_t* flags,
                                                                           unsigned rows, unsigned packets) {
  const unsigned at = blockIdx.x * flag_threads + threadIdx.x, first = blockIdx.y * flag_rows;
  if (at >= packets) return;
  unsigned marks = 0;
#pragma unroll 8
  for (unsigned row = first; row < min(first + flag_rows, rows); ++row) {
    float values[packet];
    unpack(x[std::size_t{row} * packets + at], values);
#pragma unroll
    for (int k = 0; k < packet; ++k) marks |= fabsf(values[k]) >= outlier_threshold ? 1u << k : 0;
  }
  for (int k = 0; k < packet; ++k)
    if (marks >> k & 1) flags[at * packet + k] = 1;
}

// By one block.
static __global__ __launch_bounds__(list_threads) void list_columns_kernel(Outliers to, unsigned columns) {
  __shared__ unsigned of_warps[list_threads / 32];
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  unsigned before = 0;
  for (unsigned first = 0; first < columns; first += list_threads) {
    const unsigned column = first + threadIdx.x;
    const bool flagged = column < columns && to.flags[column] != 0;
    const unsigned in_warp = __ballot_sync(~0u, flagged);
    __syncthreads();
    if (lane == 0) of_warps[warp] = static_cast<unsigned>(__popc(in_warp));
    __syncthreads();
    unsigned place = before + static_cast<unsigned>(__popc(in_warp & ((1u << lane) - 1)));
    for (unsigned w = 0; w < list_threads / 32; ++w) {
      if (w < warp) place += of_warps[w];
      before += of_warps[w];
    }
    if (flagged && place < to.capacity) to.columns[place] = static_cast<int>(column);
  }
  if (threadIdx.x == 0) *to.count = static_cast<int>(min(before, to.capacity));
}

// The largest magnitude of a row below the threshold, and codes of a row without its outliers, in two passes over it.
static __global__ __launch_bounds__(row_threads) void quantize_inliers_kernel(const uint4* __restrict__ x,
                                                                              const std::uint8_t* __restrict__ flags,
                                                                              uint2* __restrict__ codes,
                                                                              float* __restrict__ scales, unsigned packets) {
  __shared__ float shared_maxima[device::largest_block_in_warps];
  const std::size_t row = std::size_t{blockIdx.x} * packets;
  float values[packet], largest = 0;
  for (unsigned i = threadIdx.x; i < packets; i += row_threads) {
    unpack(x[row + i], values);
#pragma unroll
    for (const float value : values)
      if (fabsf(value) < outlier_threshold) largest = fmaxf(largest, fabsf(value));
  }
  largest = device::block_max(largest, 0.0f, shared_maxima);
  for (unsigned i = threadIdx.x; i < packets; i += row_threads) {
    unpack(x[row + i], values);
    int row_codes[packet];
#pragma unroll
    for (int k = 0; k < packet; ++k) row_codes[k] = flags[i * packet + k] != 0 ? 0 : int8_code(values[k], int8_factor(largest));
    codes[row + i] = pack_int8(row_codes);
  }
  if (threadIdx.x == 0) scales[blockIdx.x] = int8_scale(largest);
}

// The outliers' columns of x, as [row][capacity], with zeros up to the next multiple of 64; a row a block.
__device__ __forceinline__ void gather_row(const bf16* x, const Outliers& of, bf16* to, unsigned row, unsigned columns) {
  const auto used = static_cast<unsigned>(*of.count);
  for (unsigned i = threadIdx.x; i < of.padded(); i += blockDim.x)
    to[std::size_t{row} * of.capacity + i] =
        i < used ? x[std::size_t{row} * columns + static_cast<unsigned>(of.columns[i])] : __float2bfloat16_rn(0);
}
// And the same rows of the weights [k][n]; a row a block.
__device__ __forceinline__ void gather_weights(const uint4* w, const Outliers& of, uint4* to, unsigned i, unsigned row_packets) {
  const auto used = static_cast<unsigned>(*of.count);
  if (i >= of.padded()) return;
  for (unsigned j = threadIdx.x; j < row_packets; j += blockDim.x)
    to[std::size_t{i} * row_packets + j] =
        i < used ? w[static_cast<std::size_t>(of.columns[i]) * row_packets + j] : make_uint4(0, 0, 0, 0);
}
static __global__ __launch_bounds__(64) void gather_rows_kernel(const bf16* x, Outliers of, bf16* to, unsigned columns) {
  gather_row(x, of, to, blockIdx.x, columns);
}
static __global__ __launch_bounds__(row_threads) void gather_weights_kernel(const uint4* w, Outliers of, uint4* to,
                                                                            unsigned row_packets) {
  gather_weights(w, of, to, blockIdx.x, row_packets);
}

static __global__ __launch_bounds__(row_threads) void dequantize_kernel(const int4* __restrict__ sums,
                                                                        const float* __restrict__ row_scales,
                                                                        const float4* __restrict__ column_scales,
                                                                        uint4* __restrict__ out, unsigned row_packets) {
  const unsigned i = blockIdx.y * row_threads + threadIdx.x;
  if (i >= row_packets) return;
  const std::size_t at = std::size_t{blockIdx.x} * row_packets + i;
  const float of_row = row_scales[blockIdx.x];
  float values[packet];
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    const int4 sum = sums[2 * at + half];
    const float4 by = column_scales[2 * i + half];
    values[4 * half] = __int2float_rn(sum.x) * (of_row * by.x);
    values[4 * half + 1] = __int2float_rn(sum.y) * (of_row * by.y);
    values[4 * half + 2] = __int2float_rn(sum.z) * (of_row * by.z);
    values[4 * half + 3] = __int2float_rn(sum.w) * (of_row * by.w);
  }
  out[at] = shared::pack(values);
}

// Flags and the rows' maxima in one pass. A warp has whole rows, and a lane always the same columns of them.
constexpr unsigned survey_threads = 128;
static __global__ __launch_bounds__(survey_threads) void survey_kernel(const uint4* __restrict__ x, std::uint8_t* flags,
                                                                       float* __restrict__ maxima, unsigned rows,
                                                                       unsigned packets) {
  constexpr unsigned words = most_row_packets / 32 / 4;
  const unsigned lane = threadIdx.x % 32, warps = gridDim.x * (survey_threads / 32);
  unsigned marks[words] = {};  // eight bits for each of a lane's packets
  for (unsigned row = blockIdx.x * (survey_threads / 32) + threadIdx.x / 32; row < rows; row += warps) {
    float largest = 0;
#pragma unroll
    for (unsigned w = 0; w < words; ++w) {
      uint4 packets_of_word[4] = {};
#pragma unroll
      for (unsigned i = 0; i < 4; ++i)
        if (const unsigned at = (w * 4 + i) * 32 + lane; at < packets) packets_of_word[i] = x[std::size_t{row} * packets + at];
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {
        float values[packet];
        unpack(packets_of_word[i], values);
#pragma unroll
        for (unsigned k = 0; k < packet; ++k) {
          const bool beyond = fabsf(values[k]) >= outlier_threshold;
          marks[w] |= beyond ? 1u << (i * 8 + k) : 0;
          largest = fmaxf(largest, beyond ? 0 : fabsf(values[k]));
        }
      }
    }
    largest = device::warp_max(largest);
    if (lane == 0) maxima[row] = largest;
  }
#pragma unroll
  for (unsigned w = 0; w < words; ++w)
    for (unsigned rest = marks[w]; rest != 0; rest &= rest - 1) {
      const auto bit = static_cast<unsigned>(__ffs(static_cast<int>(rest))) - 1;
      flags[((w * 4 + bit / 8) * 32 + lane) * packet + bit % 8] = 1;
    }
}

// Quantizes and gathers once flags and maxima are known: a block has a row of x, or after them one of the outliers' weights.
static __global__ __launch_bounds__(row_threads) void quantize_and_gather_kernel(
    const uint4* __restrict__ x, const uint4* w, const float* __restrict__ maxima, Outliers of, uint2* __restrict__ codes,
    float* __restrict__ scales, bf16* x_outliers, uint4* w_outliers, unsigned rows, unsigned packets, unsigned w_packets) {
  const unsigned row = blockIdx.x;
  if (row >= rows) return gather_weights(w, of, w_outliers, row - rows, w_packets);
  const float factor = int8_factor(maxima[row]);
  for (unsigned i = threadIdx.x; i < packets; i += row_threads) {
    float values[packet];
    unpack(x[std::size_t{row} * packets + i], values);
    const uint2 flagged = reinterpret_cast<const uint2*>(of.flags)[i];
    int row_codes[packet];
#pragma unroll
    for (int k = 0; k < packet; ++k)
      row_codes[k] = ((k < 4 ? flagged.x : flagged.y) >> k % 4 * 8 & 1) != 0 ? 0 : int8_code(values[k], factor);
    codes[std::size_t{row} * packets + i] = pack_int8(row_codes);
  }
  gather_row(reinterpret_cast<const bf16*>(x), of, x_outliers, row, packets * packet);
  if (threadIdx.x == 0) scales[row] = int8_scale(maxima[row]);
}

// Whole rows, outliers and all; with `factors`, each column times its own before. A row stays in registers.
static __global__ __launch_bounds__(row_threads) void quantize_whole_rows_kernel(const uint4* __restrict__ x,
                                                                                 const float4* __restrict__ factors,
                                                                                 uint2* __restrict__ codes,
                                                                                 float* __restrict__ scales, unsigned packets) {
  constexpr unsigned own = most_row_packets / row_threads;
  __shared__ float shared_maxima[device::largest_block_in_warps];
  const std::size_t row = std::size_t{blockIdx.x} * packets;
  float values[own][packet], largest = 0;
#pragma unroll
  for (unsigned p = 0; p < own; ++p) {
    const unsigned i = p * row_threads + threadIdx.x;
    unpack(i < packets ? x[row + i] : make_uint4(0, 0, 0, 0), values[p]);
    if (factors != nullptr && i < packets) {
      const float4 low = factors[2 * i], high = factors[2 * i + 1];
      const float by[packet] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int k = 0; k < packet; ++k) values[p][k] *= by[k];
    }
    largest = fmaxf(largest, largest_magnitude(values[p]));
  }
  largest = device::block_max(largest, 0.0f, shared_maxima);
#pragma unroll
  for (unsigned p = 0; p < own; ++p) {
    const unsigned i = p * row_threads + threadIdx.x;
    int row_codes[packet];
#pragma unroll
    for (int k = 0; k < packet; ++k) row_codes[k] = int8_code(values[p][k], int8_factor(largest));
    if (i < packets) codes[row + i] = pack_int8(row_codes);
  }
  if (threadIdx.x == 0) scales[blockIdx.x] = int8_scale(largest);
}

// Quantizes weights [k][n] when a model is loaded: codes [n][k] and scales of columns; with `factors`, each row times its own
// before. A thread has a column.
static __global__ __launch_bounds__(64) void quantize_weights_kernel(const bf16* __restrict__ w,
                                                                     const float* __restrict__ factors,
                                                                     std::int8_t* __restrict__ codes, float* __restrict__ scales,
                                                                     unsigned rows, unsigned columns) {
  const unsigned column = blockIdx.x * 64 + threadIdx.x;
  if (column >= columns) return;
  const auto at = [&](unsigned row) {
    return __bfloat162float(w[std::size_t{row} * columns + column]) * (factors != nullptr ? factors[row] : 1);
  };
  float largest = 0;
#pragma unroll 8
  for (unsigned row = 0; row < rows; ++row) largest = fmaxf(largest, fabsf(at(row)));
  for (unsigned first = 0; first < rows; first += 16) {
    unsigned words[4] = {};
#pragma unroll
    for (unsigned k = 0; k < 16; ++k)
      words[k / 4] |= (static_cast<unsigned>(int8_code(at(first + k), int8_factor(largest))) & 0xFFu) << k % 4 * 8;
    *reinterpret_cast<uint4*>(codes + std::size_t{column} * rows + first) = make_uint4(words[0], words[1], words[2], words[3]);
  }
  scales[column] = int8_scale(largest);
}

// SmoothQuant's factors for the columns of x, and for the same rows of the weights: so that both have an equal share of what is
// large in either. A block has a column of x and a row of the weights.
static __global__ __launch_bounds__(row_threads) void smoothing_kernel(const bf16* __restrict__ x, const bf16* __restrict__ w,
                                                                       float* __restrict__ of_x, float* __restrict__ of_w,
                                                                       unsigned rows, unsigned inner, unsigned columns) {
  __shared__ float shared_maxima[device::largest_block_in_warps];
  const unsigned k = blockIdx.x;
  float in_x = 0, in_w = 0;
  for (unsigned i = threadIdx.x; i < rows; i += row_threads)
    in_x = fmaxf(in_x, fabsf(__bfloat162float(x[std::size_t{i} * inner + k])));
  for (unsigned i = threadIdx.x; i < columns; i += row_threads)
    in_w = fmaxf(in_w, fabsf(__bfloat162float(w[std::size_t{k} * columns + i])));
  in_x = device::block_max(in_x, 0.0f, shared_maxima);
  in_w = device::block_max(in_w, 0.0f, shared_maxima);
  if (threadIdx.x != 0) return;
  const float moved = sqrtf(fmaxf(in_x, 1e-5f) / fmaxf(in_w, 1e-5f));
  of_x[k] = 1 / moved;
  of_w[k] = moved;
}

// For the reference: whether a column has a value beyond the threshold.
static __global__ __launch_bounds__(64) void reference_flags_kernel(const bf16* x, std::uint8_t* flags, unsigned rows,
                                                                    unsigned columns) {
  const unsigned column = blockIdx.x * 64 + threadIdx.x;
  if (column >= columns) return;
  bool beyond = false;
  for (unsigned row = 0; row < rows; ++row)
    beyond = beyond || fabsf(__bfloat162float(x[std::size_t{row} * columns + column])) >= outlier_threshold;
  flags[column] = beyond ? 1 : 0;
}

}  // namespace aisp::ch19
