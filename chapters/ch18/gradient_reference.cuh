// SPDX-License-Identifier: Apache-2.0
// The gradients of causal attention in float64, by plain kernels on the GPU: all of them, since those of keys fall as one over
// their place, and a few elements say nothing about a head.
#pragma once
#include <cuda_bf16.h>
#include <aisp/launch.hpp>
#include <aisp/setup.hpp>

#include <array>
#include <cstddef>
#include <vector>

#include "attention_rows.hpp"

namespace aisp::ch18 {
namespace {

constexpr int reference_threads = 128, reference_rows = 16;

struct GradientOperands {
  const __nv_bfloat16 *q, *k, *v, *d_o;  // [head][row][column]
  double *log_sums, *deltas;             // of each row
  unsigned length;
};

// Computes for each row, a block of its own, the log-sum-exp of its scores and the sum of its weights times their gradients.
__global__ __launch_bounds__(reference_threads) void sums_of_rows_kernel(const __grid_constant__ GradientOperands of) {
  static_assert(reference_threads == head_size);
  __shared__ double of_row[2][head_size], maxima[reference_threads], sums[2][reference_threads];
  const unsigned t = threadIdx.x, last = blockIdx.x % of.length;
  const std::size_t head = (blockIdx.x - last) * std::size_t{head_size}, row = blockIdx.x * std::size_t{head_size};
  of_row[0][t] = static_cast<double>(__bfloat162float(of.q[row + t])) * score_scale;
  of_row[1][t] = static_cast<double>(__bfloat162float(of.d_o[row + t]));
  __syncthreads();
  double maximum = -1e300, sum = 0, of_gradients = 0;
  const auto add = [&](double of_other, double other_sum, double other_gradients) {  // relative to that maximum
    const double smaller = exp(-fabs(of_other - maximum)), own = of_other > maximum ? smaller : 1;
    const double other = of_other > maximum ? 1 : smaller;
    maximum = fmax(maximum, of_other);
    sum = sum * own + other_sum * other;
    of_gradients = of_gradients * own + other_gradients * other;
  };
  for (unsigned key = t; key <= last; key += reference_threads) {
    double score = 0, gradient = 0;
#pragma unroll 4
    for (unsigned i = 0; i < head_size; i += 2) {
      const std::size_t at = head + key * std::size_t{head_size} + i;
      const float2 x = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(of.k + at));
      const float2 y = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(of.v + at));
      score += of_row[0][i] * x.x + of_row[0][i + 1] * x.y;
      gradient += of_row[1][i] * y.x + of_row[1][i + 1] * y.y;
    }
    add(score, 1, gradient);
  }
  maxima[t] = maximum, sums[0][t] = sum, sums[1][t] = of_gradients;
  __syncthreads();
  if (t != 0) return;
#pragma unroll 1
  for (int i = 1; i < reference_threads; ++i) add(maxima[i], sums[0][i], sums[1][i]);
  of.log_sums[blockIdx.x] = maximum + log(sum);
  of.deltas[blockIdx.x] = of_gradients / sum;
}

struct ReferenceTiles {
  double own[2][reference_rows][head_size + 1], others[2][reference_rows][head_size + 1];
  double weights[reference_rows][reference_rows], d_scores[reference_rows][reference_rows];  // [own][other]
};

// A block for each 16 rows of a head: of queries, and dQ, or of keys, and dK and dV. A thread has a column.
template <bool of_queries>
__global__ __launch_bounds__(reference_threads) void gradients_kernel(const __grid_constant__ GradientOperands of, double* first,
                                                                      double* second) {
  extern __shared__ __align__(1024) unsigned char shared[];
  ReferenceTiles& tiles = *reinterpret_cast<ReferenceTiles*>(shared);
  const unsigned t = threadIdx.x, own = blockIdx.x * reference_rows, head = blockIdx.y * of.length;
  const auto load = [&](double(&to)[reference_rows][head_size + 1], const __nv_bfloat16* from, unsigned row) {
    for (unsigned i = 0; i < reference_rows; ++i)
      to[i][t] =
          row + i < of.length ? static_cast<double>(__bfloat162float(from[(head + row + i) * std::size_t{head_size} + t])) : 0;
  };
  load(tiles.own[0], of_queries ? of.q : of.k, own);
  load(tiles.own[1], of_queries ? of.d_o : of.v, own);
  double sums[2][reference_rows] = {};
  const unsigned begin = of_queries ? 0 : own, end = of_queries ? own + reference_rows : of.length;
  for (unsigned other = begin; other < end; other += reference_rows) {
    load(tiles.others[0], of_queries ? of.k : of.q, other);
    load(tiles.others[1], of_queries ? of.v : of.d_o, other);
    __syncthreads();
    for (unsigned i = t; i < reference_rows * reference_rows; i += reference_threads) {
      const unsigned x = i / reference_rows, y = i % reference_rows;
      const unsigned row = of_queries ? own + x : other + y, key = of_queries ? other + y : own + x;
      double score = 0, gradient = 0;
#pragma unroll 4
      for (unsigned j = 0; j < head_size; ++j) {
        score += tiles.own[0][x][j] * tiles.others[0][y][j];
        gradient += tiles.own[1][x][j] * tiles.others[1][y][j];
      }
      const bool visible = key <= row && row < of.length;
      const double weight = visible ? exp(score * score_scale - of.log_sums[head + row]) : 0;
      tiles.weights[x][y] = weight;
      tiles.d_scores[x][y] = visible ? weight * (gradient - of.deltas[head + row]) * score_scale : 0;
    }
    __syncthreads();
    for (unsigned y = 0; y < reference_rows; ++y)
#pragma unroll
      for (unsigned x = 0; x < reference_rows; ++x) {
        sums[0][x] += tiles.d_scores[x][y] * tiles.others[0][y][t];
        if constexpr (!of_queries) sums[1][x] += tiles.weights[x][y] * tiles.others[1][y][t];
      }
    __syncthreads();
  }
#pragma unroll
  for (unsigned x = 0; x < reference_rows; ++x)
    if (const std::size_t at = (head + own + x) * std::size_t{head_size} + t; own + x < of.length) {
      first[at] = sums[0][x];
      if constexpr (!of_queries) second[at] = sums[1][x];
    }
}

class GradientReference {
 public:
  GradientReference(Setup& setup, const RowLayout& rows)
      : rows_{rows},
        log_sums_{setup.scratch<double>(rows.heads * rows.rows, {.name = "log-sum-exps in float64"})},
        deltas_{setup.scratch<double>(rows.heads * rows.rows, {.name = "sums of o times its gradient in float64"})},
        gradients_{setup.scratch<double>(3 * rows.elements(), {.name = "gradients in float64"})} {}

  // Behind every refill. Q, K, V and dO: [head][row][column].
  void compute(Launch& launch, const __nv_bfloat16* q, const __nv_bfloat16* k, const __nv_bfloat16* v, const __nv_bfloat16* d_o) {
    const GradientOperands of{q, k, v, d_o, log_sums_, deltas_, static_cast<unsigned>(rows_.rows)};
    launch(sums_of_rows_kernel, {static_cast<unsigned>(rows_.heads * rows_.rows), reference_threads}, of);
    const auto blocks = static_cast<unsigned>((rows_.rows + reference_rows - 1) / reference_rows);
    const Grid grid{{blocks, static_cast<unsigned>(rows_.heads)}, reference_threads, sizeof(ReferenceTiles)};
    double* const d_q = gradients_;
    launch(gradients_kernel<true>, grid, of, d_q, d_q);
    launch(gradients_kernel<false>, grid, of, d_q + rows_.elements(), d_q + 2 * rows_.elements());
    values_.resize(3 * rows_.elements());
    check(cudaStreamSynchronize(launch.stream));
    check(cudaMemcpy(values_.data(), gradients_, gradients_.bytes(), cudaMemcpyDeviceToHost));
  }

  // Element i of dQ, dK or dV (output 0, 1 or 2).
  double gradient(int output, std::size_t i) const { return values_[static_cast<std::size_t>(output) * rows_.elements() + i]; }

 private:
  RowLayout rows_;
  Scratch<double> log_sums_, deltas_, gradients_;
  std::vector<double> values_;
};

}  // namespace
}  // namespace aisp::ch18
