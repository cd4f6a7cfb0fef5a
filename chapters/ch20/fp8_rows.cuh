// SPDX-License-Identifier: Apache-2.0
// Weights in e4m3 with a power of two as the scale of each output channel, and their product with a few rows in bf16. Codes are
// exact in f16, in which the tensor cores multiply them; the scale comes last.
#pragma once
#include <aisp/device/matrix.cuh>
#include <aisp/launch.hpp>

#include <cstddef>

#include "rows.cuh"

namespace aisp::ch20 {

using shared::bf16, shared::packet;

constexpr unsigned quantizing_threads = 256;
constexpr float largest_e4m3 = 448;

// A block has a channel: its codes, its scale, and what it says in bf16, which is exact.
static __global__ __launch_bounds__(quantizing_threads) void quantize_channels_kernel(const uint4* weights, uint2* codes,
                                                                                      float* scales, uint4* said,
                                                                                      unsigned packets) {
  __shared__ float maxima[device::largest_block_in_warps];
  const std::size_t first = std::size_t{blockIdx.x} * packets;
  float largest = 0, x[packet];
  for (unsigned i = threadIdx.x; i < packets; i += quantizing_threads) {
    shared::unpack(weights[first + i], x);
#pragma unroll
    for (int j = 0; j < packet; ++j) largest = fmaxf(largest, fabsf(x[j]));
  }
  largest = device::block_max(largest, 0.0f, maxima);
  int exponent = 0;
  if (largest > 0) frexpf(largest / largest_e4m3, &exponent);  // the next power of two above
  const float scale = ldexpf(1, exponent), factor = ldexpf(1, -exponent);
  for (unsigned i = threadIdx.x; i < packets; i += quantizing_threads) {
    shared::unpack(weights[first + i], x);
    unsigned words[2] = {};
#pragma unroll
    for (int j = 0; j < packet; j += 2) {
      const unsigned pair = device::narrow_e4m3(x[j] * factor, x[j + 1] * factor), halves = device::widen_e4m3(pair);
      words[j / 4] |= pair << j % 4 * 8;
      const float2 both = __half22float2(reinterpret_cast<const __half2&>(halves));
      x[j] = both.x * scale, x[j + 1] = both.y * scale;
    }
    codes[first + i] = make_uint2(words[0], words[1]);
    said[first + i] = shared::pack(x);
  }
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
}

constexpr int fp8_warps = 16, fp8_threads = fp8_warps * device::warp_size, fp8_outputs = 32, fp8_depth = 64;

struct Fp8Product {
  const uint4* codes;   // [outputs][depth]
  const float* scales;  // [outputs]
  const bf16* x;        // [rows][depth]
  bf16* y;              // [rows][outputs]
  int outputs, depth, rows;
};

// A block has 32 outputs; its warps have the chunks of 64 along K in turn, and their sums meet in shared memory. Within a chunk
// K goes through the tensor cores in another order than in memory, the same for weights and rows: a lane's 16 neighbours in
// memory are its elements of four products. `groups`: of eight rows.
template <int groups>
__global__ __launch_bounds__(fp8_threads, 1) void fp8_product_kernel(Fp8Product product) {
  __shared__ float sums[fp8_warps][8][fp8_outputs];
  const int warp = static_cast<int>(threadIdx.x) / device::warp_size, lane = static_cast<int>(threadIdx.x) % device::warp_size;
  const int first = static_cast<int>(blockIdx.x) * fp8_outputs, chunks = product.depth / fp8_depth, pitch = product.depth / 16;
  const uint4* const codes = product.codes + static_cast<std::size_t>(first + lane / 4) * pitch + lane % 4;
  float own[groups][2][4] = {};
  const auto load = [&](uint4(&to)[4], int chunk) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      to[i] = chunk < chunks ? __ldcs(codes + static_cast<std::size_t>(8 * i) * pitch + chunk * 4) : uint4{};
  };
  const auto multiply = [&](const uint4(&rows)[4], int chunk) {
    if (chunk >= chunks) return;
#pragma unroll
    for (int g = 0; g < groups; ++g) {
      const int row = g * 8 + lane / 4;
      uint4 x[2] = {};
      if (row < product.rows) {
        const uint4* const from =
            reinterpret_cast<const uint4*>(product.x + static_cast<std::size_t>(row) * product.depth + chunk * fp8_depth) +
            lane % 4 * 2;
        x[0] = from[0], x[1] = from[1];
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float wide[packet];
        shared::unpack(x[half], wide);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const unsigned b0 = device::narrow_f16(wide[4 * j], wide[4 * j + 1]),
                         b1 = device::narrow_f16(wide[4 * j + 2], wide[4 * j + 3]);
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            const auto word = [&](const uint4& of) { return half == 0 ? (j == 0 ? of.x : of.y) : j == 0 ? of.z : of.w; };
            const unsigned upper = word(rows[2 * m]), lower = word(rows[2 * m + 1]);
            const unsigned a[4] = {device::widen_e4m3(upper), device::widen_e4m3(lower), device::widen_e4m3(upper >> 16),
                                   device::widen_e4m3(lower >> 16)};
            device::mma_f16(own[g][m], a, b0, b1);
          }
        }
      }
    }
  };
  uint4 now[4], next[4];
  load(now, warp);
  for (int chunk = warp; chunk < chunks; chunk += 2 * fp8_warps) {
    load(next, chunk + fp8_warps);
    multiply(now, chunk);
    load(now, chunk + 2 * fp8_warps);
    multiply(next, chunk + fp8_warps);
  }
#pragma unroll
  for (int g = 0; g < groups; ++g) {
    __syncthreads();
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[warp][lane % 4 * 2 + i % 2][m * 16 + lane / 4 + i / 2 * 8] = own[g][m][i];
    __syncthreads();
    const int row = static_cast<int>(threadIdx.x) / fp8_outputs, output = static_cast<int>(threadIdx.x) % fp8_outputs;
    if (row >= 8 || g * 8 + row >= product.rows) continue;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < fp8_warps; ++w) sum += sums[w][row][output];
    product.y[static_cast<std::size_t>(g * 8 + row) * product.outputs + first + output] =
        __float2bfloat16_rn(sum * product.scales[first + output]);
  }
}

// Up to 32 rows; `outputs` is a multiple of 32, `depth` of 64.
inline void multiply_fp8(cudaStream_t stream, const Fp8Product& product) {
  const Grid grid{static_cast<unsigned>(product.outputs / fp8_outputs), fp8_threads};
  if (product.rows <= 8) launch_kernel(stream, fp8_product_kernel<1>, grid, product);
  else if (product.rows <= 16) launch_kernel(stream, fp8_product_kernel<2>, grid, product);
  else launch_kernel(stream, fp8_product_kernel<4>, grid, product);
}

}  // namespace aisp::ch20
