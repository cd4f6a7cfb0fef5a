// SPDX-License-Identifier: Apache-2.0
// The gradients of causal attention in float64: what a row needs of all its keys on the GPU, single elements on the CPU.
#pragma once
#include <aisp/device/reduce.cuh>
#include <aisp/launch.hpp>

#include <cmath>
#include <cstddef>
#include <vector>

#include "attention_rows.hpp"

namespace aisp::ch18 {
namespace {

// Of each row, a block of its own, the log-sum-exp of its scores and the sum of its weights times their gradients.
constexpr int threads_of_a_row = 128;
__global__ __launch_bounds__(threads_of_a_row) void sums_of_rows_kernel(const __nv_bfloat16* q, const __nv_bfloat16* k,
                                                                        const __nv_bfloat16* v, const __nv_bfloat16* d_o,
                                                                        double* log_sums, double* deltas, unsigned length) {
  __shared__ double of_row[2][head_size], maxima[threads_of_a_row], sums[2][threads_of_a_row];
  const unsigned t = threadIdx.x, last = blockIdx.x % length;
  const std::size_t head = (blockIdx.x - last) * std::size_t{head_size}, row = blockIdx.x * std::size_t{head_size};
  of_row[0][t] = static_cast<double>(__bfloat162float(q[row + t])) * score_scale;
  of_row[1][t] = static_cast<double>(__bfloat162float(d_o[row + t]));
  __syncthreads();
  double maximum = -1e300, sum = 0, of_gradients = 0;
  const auto add = [&](double of_other, double other_sum, double other_gradients) {  // relative to that maximum
    const double smaller = exp(-fabs(of_other - maximum)), own = of_other > maximum ? smaller : 1;
    const double other = of_other > maximum ? 1 : smaller;
    maximum = fmax(maximum, of_other);
    sum = sum * own + other_sum * other;
    of_gradients = of_gradients * own + other_gradients * other;
  };
  for (unsigned key = t; key <= last; key += threads_of_a_row) {
    double score = 0, gradient = 0;
#pragma unroll 4
    for (unsigned i = 0; i < head_size; i += 2) {
      const std::size_t at = head + key * std::size_t{head_size} + i;
      const float2 x = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(k + at));
      const float2 y = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(v + at));
      score += of_row[0][i] * x.x + of_row[0][i + 1] * x.y;
      gradient += of_row[1][i] * y.x + of_row[1][i + 1] * y.y;
    }
    add(score, 1, gradient);
  }
  maxima[t] = maximum, sums[0][t] = sum, sums[1][t] = of_gradients;
  __syncthreads();
  if (t != 0) return;
#pragma unroll 1
  for (int i = 1; i < threads_of_a_row; ++i) add(maxima[i], sums[0][i], sums[1][i]);
  log_sums[blockIdx.x] = maximum + log(sum);
  deltas[blockIdx.x] = of_gradients / sum;
}

class GradientReference {
 public:
  explicit GradientReference(const RowLayout& rows) : rows_{rows} {}

  struct Inputs {
    const Input<__nv_bfloat16>&q, &k, &v, &d_o;  // [head][row][column]
  };
  // Behind every refill; log_sums and deltas: room for one of each row.
  void keep(Launch& launch, const Inputs& in, double* log_sums, double* deltas, int cpus) {
    launch(sums_of_rows_kernel, {static_cast<unsigned>(rows_.heads * rows_.rows), threads_of_a_row}, in.q.get(), in.k.get(),
           in.v.get(), in.d_o.get(), log_sums, deltas, static_cast<unsigned>(rows_.rows));
    const auto values = [&](const Input<__nv_bfloat16>& input, std::vector<float>& to) {
      to.resize(rows_.elements());
      on_all_cpus(rows_.heads, cpus, [&](std::size_t head) {
        for (std::size_t i = rows_.begin(head, 0); i < rows_.begin(head, rows_.rows); ++i)
          to[i] = static_cast<float>(input.host(i));
      });
    };
    values(in.q, q_), values(in.k, k_), values(in.v, v_), values(in.d_o, d_o_);
    check(cudaStreamSynchronize(launch.stream));
    const auto sums = [&](const double* from, std::vector<double>& to) {
      to.resize(rows_.heads * rows_.rows);
      check(cudaMemcpy(to.data(), from, to.size() * sizeof(double), cudaMemcpyDeviceToHost));
    };
    sums(log_sums, log_sums_), sums(deltas, deltas_);
  }

  // Element i of dQ, dK or dV (output 0, 1 or 2).
  double gradient(int output, std::size_t i) const {
    const std::size_t head = i / head_size / rows_.rows, place = i / head_size % rows_.rows, column = i % head_size;
    double sum = 0;
    if (output == 0)
      for (std::size_t key = 0; key <= place; ++key) {
        const std::size_t row = rows_.begin(head, place), at = rows_.begin(head, key);
        sum += of_score(row, at) * static_cast<double>(k_[at + column]);
      }
    else
      for (std::size_t of_query = place; of_query < rows_.rows; ++of_query) {
        const std::size_t row = rows_.begin(head, of_query), at = rows_.begin(head, place);
        sum += output == 1 ? of_score(row, at) * static_cast<double>(q_[row + column])
                           : weight(row, at) * static_cast<double>(d_o_[row + column]);
      }
    return sum;
  }

 private:
  static double product(const float* x, const float* y) {
    std::array<double, 4> sums{};
    for (std::size_t i = 0; i < head_size; i += sums.size())
      for (std::size_t j = 0; j < sums.size(); ++j) sums[j] += static_cast<double>(x[i + j]) * static_cast<double>(y[i + j]);
    return sums[0] + sums[1] + sums[2] + sums[3];
  }
  // Of the row and the key that begin at these elements.
  double weight(std::size_t row, std::size_t key) const {
    return std::exp(product(&q_[row], &k_[key]) * score_scale - log_sums_[row / head_size]);
  }
  double of_score(std::size_t row, std::size_t key) const {
    const double of_weight = product(&d_o_[row], &v_[key]) - deltas_[row / head_size];
    return weight(row, key) * of_weight * score_scale;
  }

  RowLayout rows_;
  std::vector<float> q_, k_, v_, d_o_;
  std::vector<double> log_sums_, deltas_;
};

}  // namespace
}  // namespace aisp::ch18
