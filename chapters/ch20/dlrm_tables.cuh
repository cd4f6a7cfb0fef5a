// SPDX-License-Identifier: Apache-2.0
// Embedding bags and the passes between the products of a DLRM, one kernel for each of PyTorch's operations.
#pragma once
#include <cuda_bf16.h>
#include <aisp/device/matrix.cuh>
#include <aisp/device/reduce.cuh>

#include <cstddef>

#include "rows.cuh"

namespace aisp::ch20::dlrm {

using bf16 = __nv_bfloat16;
constexpr int tables = 26, vectors = tables + 1, width = 128;       // the bottom MLP's result is the first vector
constexpr int pairs = vectors * (vectors - 1) / 2, features = 480;  // 128, 351 products and a zero
constexpr int square = 32;                                          // a row of a sample's products, padded
constexpr int threads = 256, lanes = 16;                            // that have a bag, each eight columns of it

// A bag of a table has the first counts[sample] of its indices.
struct Bags {
  const bf16* rows;             // [table][row][width]
  const int *indices, *counts;  // [table][sample][lookups], [table][sample]
  unsigned table_rows, samples, lookups;
};

// The sum of a bag's rows, by half a warp: four columns a word, of 16 bytes a lane.
__device__ __forceinline__ uint4 pooled(const Bags& bags, unsigned table, unsigned sample) {
  constexpr int at_once = 8;
  const unsigned lane = threadIdx.x % lanes;
  const std::size_t bag = std::size_t{table} * bags.samples + sample;
  const uint4* const rows = reinterpret_cast<const uint4*>(bags.rows) + std::size_t{table} * bags.table_rows * lanes + lane;
  const int* const indices = bags.indices + bag * bags.lookups;
  const int count = bags.counts[bag];
  float sums[8] = {};
  for (int first = 0; first < count; first += at_once) {
    uint4 loaded[at_once];
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      const int row = first + i < static_cast<int>(bags.lookups) ? indices[first + i] : 0;
      loaded[i] = uint4{0, 0, 0, 0};
      if (first + i < count) loaded[i] = rows[std::size_t(row) * lanes];
    }
#pragma unroll
    for (const uint4& packet : loaded) {
      float row[8];
      shared::unpack(packet, row);
#pragma unroll
      for (int c = 0; c < 8; ++c) sums[c] += row[c];
    }
  }
  return shared::pack(sums);
}

// Pools bags of table `table` + blockIdx.y; a sample begins every `sample_packets`, a table every `table_packets` in it.
static __global__ __launch_bounds__(threads) void bags_kernel(Bags bags, unsigned table, uint4* to, std::size_t sample_packets,
                                                              std::size_t table_packets) {
  const unsigned sample = (blockIdx.x * threads + threadIdx.x) / lanes, of = table + blockIdx.y;
  if (sample >= bags.samples) return;
  to[sample * sample_packets + blockIdx.y * table_packets + threadIdx.x % lanes] = pooled(bags, of, sample);
}

// Bottom and pooled rows side by side: [sample][vector][width].
static __global__ __launch_bounds__(threads) void concatenate_kernel(const uint4* bottom, const uint4* of_tables, uint4* to,
                                                                     unsigned samples) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= std::size_t{samples} * vectors * lanes) return;
  const std::size_t sample = i / (vectors * lanes), vector = i / lanes % vectors, lane = i % lanes;
  to[i] = vector == 0 ? bottom[sample * lanes + lane] : of_tables[((vector - 1) * samples + sample) * lanes + lane];
}

// The products below the diagonal after the bottom vector: features[sample]. A warp a sample.
static __global__ __launch_bounds__(threads) void triangle_kernel(const bf16* bottom, std::size_t bottom_pitch,
                                                                  const bf16* squares, bf16* to, unsigned samples) {
  const unsigned sample = (blockIdx.x * threads + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (sample >= samples) return;
  const bf16* const products = squares + std::size_t{sample} * vectors * square;
  bf16* const own = to + std::size_t{sample} * features;
  if (lane < lanes) reinterpret_cast<uint4*>(own)[lane] = reinterpret_cast<const uint4*>(bottom + sample * bottom_pitch)[lane];
  for (unsigned row = 1; row < vectors; ++row)
    if (lane < row) own[width + row * (row - 1) / 2 + lane] = products[row * square + lane];
  if (lane == 0) own[features - 1] = bf16{0.0f};
}

// Adds the bias to a product's rows and clips at 0, in place or to rows `pitch` packets apart.
static __global__ __launch_bounds__(threads) void bias_relu_kernel(const uint4* from, const uint4* bias, uint4* to,
                                                                   unsigned packets, std::size_t pitch, std::size_t count) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= count) return;
  float x[8], b[8];
  shared::unpack(from[i], x);
  shared::unpack(bias[i % packets], b);
#pragma unroll
  for (int c = 0; c < 8; ++c) x[c] = fmaxf(x[c] + b[c], 0.0f);
  to[i / packets * pitch + i % packets] = shared::pack(x);
}

// The last layer has one output: sigmoid(h . w), a warp a sample of 256 columns.
constexpr int last_width = 256;
static __global__ __launch_bounds__(threads) void score_kernel(const uint4* h, const uint4* w, float* scores, unsigned samples) {
  const unsigned sample = (blockIdx.x * threads + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (sample >= samples) return;
  float x[8], y[8], sum = 0;
  shared::unpack(h[std::size_t{sample} * (last_width / 8) + lane], x);
  shared::unpack(w[lane], y);
#pragma unroll
  for (int c = 0; c < 8; ++c) sum = fmaf(x[c], y[c], sum);
  sum = device::warp_sum(sum);
  if (lane == 0) scores[sample] = 1 / (1 + __expf(-sum));
}

}  // namespace aisp::ch20::dlrm
