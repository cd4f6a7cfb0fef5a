// SPDX-License-Identifier: Apache-2.0
// INT4 weights with a scale and a zero point for every 128 along K, in the layouts of weight_only_int4, and their products in
// float64. A scale has four significant bits, so that a weight is a bf16 number; the zero point has the low bits of its word.
#pragma once
#include <cuda_bf16.h>
#include <aisp/launch.hpp>

#include <cstddef>
#include <cstdint>

namespace aisp::ch16::int4 {

using bf16 = __nv_bfloat16;
constexpr unsigned group = 128, tile_rows = 16, pack_threads = 256;

// The bits of a bf16 number with four significant bits, and a zero point from 0 to 15 in place of its lowest four bits.
using Quantizer = std::uint16_t;
__host__ __device__ constexpr unsigned scale_bits(unsigned quantizer) { return (quantizer & 0xFFF0u) << 16; }
__host__ __device__ constexpr unsigned zero_of(unsigned quantizer) { return quantizer & 15u; }

// Codes [row][k], one a byte, as a checkpoint's tool reads them.
struct Codes {
  const std::uint8_t* codes;
  const Quantizer* quantizers;  // [row][k / 128]
  unsigned rows, k;
  __device__ unsigned at(unsigned row, unsigned column) const { return codes[std::size_t{row} * k + column]; }
  __device__ Quantizer quantizer(unsigned row, unsigned of_group) const {
    return quantizers[std::size_t{row} * (k / group) + of_group];
  }
};

// A thread makes a word, or a quantizer in its place.
enum class Layout { gptq, rows, interleaved, fragments };
template <Layout layout>
__global__ __launch_bounds__(pack_threads) void pack_kernel(Codes from, unsigned* words, Quantizer* quantizers) {
  const std::size_t i = std::size_t{blockIdx.x} * pack_threads + threadIdx.x, count = std::size_t{from.rows} * from.k / 8;
  if (i >= count) return;
  const unsigned words_of_row = from.k / 8, groups = from.k / group;
  unsigned word = 0;
  if constexpr (layout == Layout::gptq) {  // [k / 8][row]
    const auto row = static_cast<unsigned>(i % from.rows), first = static_cast<unsigned>(i / from.rows) * 8;
    for (unsigned n = 0; n < 8; ++n) word |= from.at(row, first + n) << 4 * n;
    if (first % group == 0) quantizers[std::size_t{first / group} * from.rows + row] = from.quantizer(row, first / group);
  } else if constexpr (layout == Layout::fragments) {
    // [16 rows][64 columns] by lanes of four words. Lane 4 g + t has columns 16 t + 4 m + 0 to 3 of the rows g and g + 8 in its
    // word m, two columns a register of the fragment.
    const unsigned m = i % 4, lane = i / 4 % 32, blocks = from.k / 64;
    const std::size_t block = i / 128;
    const auto row = static_cast<unsigned>(block / blocks) * tile_rows + lane / 4,
               column = static_cast<unsigned>(block % blocks) * 64 + lane % 4 * 16 + m * 4;
    for (unsigned reg = 0; reg < 4; ++reg)
      for (unsigned half = 0; half < 2; ++half)
        word |= from.at(row + reg % 2 * 8, column + reg / 2 * 2 + half) << (4 * reg + 16 * half);
    const auto g = static_cast<unsigned>(i);
    if (i < std::size_t{from.rows} * groups)  // [16 rows][group][row]
      quantizers[i] = from.quantizer(g / (groups * tile_rows) * tile_rows + g % tile_rows, g / tile_rows % groups);
  } else {  // [row][k / 8]
    const auto row = static_cast<unsigned>(i / words_of_row), first = static_cast<unsigned>(i % words_of_row) * 8;
    for (unsigned n = 0; n < 8; ++n)
      word |= from.at(row, first + n) << (layout == Layout::rows ? 4 * n : 4 * (n / 2) + 16 * (n % 2));
    if (first % group == 0) quantizers[std::size_t{row} * groups + first / group] = from.quantizer(row, first / group);
  }
  words[i] = word;
}

// The weights as bf16, which loses nothing.
static __global__ __launch_bounds__(pack_threads) void expand_kernel(Codes from, bf16* weights) {
  const std::size_t i = std::size_t{blockIdx.x} * pack_threads + threadIdx.x;
  if (i >= std::size_t{from.rows} * from.k) return;
  const unsigned quantizer = from.quantizers[i / group];
  const float code = static_cast<float>(from.codes[i]) - static_cast<float>(zero_of(quantizer));
  weights[i] = __float2bfloat16_rn(code * __uint_as_float(scale_bits(quantizer)));
}

// For the reference, a block a row: to[token][row].
template <class X>
__global__ __launch_bounds__(pack_threads) void product_kernel(Codes from, const X* x, unsigned tokens, double* to) {
  __shared__ double sums[pack_threads];
  const unsigned row = blockIdx.x;
  for (unsigned token = 0; token < tokens; ++token) {
    double sum = 0;
    for (unsigned k = threadIdx.x; k < from.k; k += pack_threads) {
      const unsigned quantizer = from.quantizer(row, k / group);
      const double code = static_cast<double>(from.at(row, k)) - zero_of(quantizer);
      double factor;
      if constexpr (sizeof(X) == 2) factor = __bfloat162float(x[std::size_t{token} * from.k + k]);
      else factor = x[std::size_t{token} * from.k + k];
      sum += code * __uint_as_float(scale_bits(quantizer)) * factor;
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned half = pack_threads / 2; half > 0; half /= 2) {
      if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
      __syncthreads();
    }
    if (threadIdx.x == 0) to[std::size_t{token} * from.rows + row] = sums[0];
    __syncthreads();
  }
}
static __global__ __launch_bounds__(pack_threads) void gate_reference_kernel(const double* gates_and_ups, double* hidden,
                                                                             unsigned ffn, unsigned tokens) {
  const std::size_t i = std::size_t{blockIdx.x} * pack_threads + threadIdx.x;
  if (i >= std::size_t{ffn} * tokens) return;
  const double* const of_token = gates_and_ups + i / ffn * 2 * ffn + i % ffn;
  hidden[i] = of_token[0] / (1 + exp(-of_token[0])) * of_token[ffn];
}

}  // namespace aisp::ch16::int4
