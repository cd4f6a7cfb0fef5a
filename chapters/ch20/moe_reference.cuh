// SPDX-License-Identifier: Apache-2.0
// The layer in float64 by plain kernels on the GPU, an expert at a time, from the operands as they are or as they are rounded to
// e4m3; nothing else is rounded but, with those, the activations.
#pragma once
#include <aisp/check.hpp>
#include <aisp/launch.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "moe/routing.hpp"
#include "moe_layer.cuh"

namespace aisp::ch20::layer::reference {

inline constexpr int tile = 64, tile_k = 16, each = 4;  // a thread has 4 x 4 results

struct Bf16Rows {
  const bf16* data;
  int k;
  __device__ double operator()(std::size_t n, int at) const { return static_cast<double>(__bfloat162float(data[n * k + at])); }
};
struct E4m3Rows {
  const e4m3* data;
  const float* scales;
  int k;
  __device__ double operator()(std::size_t n, int at) const {
    return static_cast<double>(static_cast<float>(data[n * k + at])) *
           static_cast<double>(scales[n / block * (k / block) + at / block]);
  }
};

// c[m][n] = a[m][k] times rows `first_n` and so on of the weights.
template <class Weights>
__global__ __launch_bounds__(threads) void product_kernel(const double* a, const Weights weights, std::size_t first_n, double* c,
                                                          int m, int n, int k) {
  __shared__ double of_a[tile_k][tile + 1], of_b[tile_k][tile + 1];
  const int t = static_cast<int>(threadIdx.x), row = static_cast<int>(blockIdx.y) * tile,
            column = static_cast<int>(blockIdx.x) * tile;
  double sums[each][each] = {};
  for (int first = 0; first < k; first += tile_k) {
    for (int i = t; i < tile * tile_k; i += threads) {
      const int line = i / tile_k, at = first + i % tile_k;
      of_a[i % tile_k][line] = row + line < m ? a[static_cast<std::size_t>(row + line) * k + at] : 0;
      of_b[i % tile_k][line] = column + line < n ? weights(first_n + static_cast<std::size_t>(column + line), at) : 0;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < tile_k; ++i)
#pragma unroll
      for (int r = 0; r < each; ++r)
#pragma unroll
        for (int j = 0; j < each; ++j) sums[r][j] += of_a[i][t / 16 + r * 16] * of_b[i][t % 16 + j * 16];
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < each; ++r)
#pragma unroll
    for (int j = 0; j < each; ++j) {
      const int at_row = row + t / 16 + r * 16, at = column + t % 16 + j * 16;
      if (at_row < m && at < n) c[static_cast<std::size_t>(at_row) * n + at] = sums[r][j];
    }
}
template <class Weights>
void multiply(Launch& launch, const double* a, const Weights& weights, std::size_t first_n, double* c, int m, int n, int k) {
  const dim3 blocks{static_cast<unsigned>((n + tile - 1) / tile), static_cast<unsigned>((m + tile - 1) / tile)};
  launch(product_kernel<Weights>, {blocks, threads}, a, weights, first_n, c, m, n, k);
}

__device__ inline double rounded(double x, double amax) {
  return amax > 0
             ? static_cast<double>(static_cast<float>(e4m3(static_cast<float>(x * (largest_e4m3 / amax))))) * amax / largest_e4m3
             : 0;
}
// Rounds 128 neighbours to e4m3. A block of so many threads.
static __global__ __launch_bounds__(block) void round_kernel(double* values) {
  __shared__ double of_warps[device::largest_block_in_warps];
  double& own = values[std::size_t{blockIdx.x} * block + threadIdx.x];
  own = rounded(own, device::block_max(fabs(own), 0.0, of_warps));
}
// The tokens of slots, one row for each block.
static __global__ void rows_kernel(const bf16* x, const int* slots, double* rows, int top_k, int hidden) {
  const auto token = static_cast<std::size_t>(slots[blockIdx.x] / top_k);
  for (int i = static_cast<int>(threadIdx.x); i < hidden; i += static_cast<int>(blockDim.x))
    rows[std::size_t{blockIdx.x} * hidden + i] = static_cast<double>(__bfloat162float(x[token * hidden + i]));
}
// blockIdx.x: the row. Groups of eight gates and the eight values that they gate.
static __global__ void swiglu_kernel(const double* h, double* products, int ffn) {
  for (int i = static_cast<int>(threadIdx.x); i < ffn; i += static_cast<int>(blockDim.x)) {
    const double* const gate = h + std::size_t{blockIdx.x} * 2 * ffn + i / packet * 2 * packet + i % packet;
    products[std::size_t{blockIdx.x} * ffn + i] = *gate / (1 + exp(-*gate)) * gate[packet];
  }
}
// Tokens come once at most in the rows of an expert.
static __global__ void add_kernel(const double* rows, const int* slots, const double* weights, double* sums, int top_k,
                                  int hidden) {
  const int slot = slots[blockIdx.x];
  double* const to = sums + static_cast<std::size_t>(slot / top_k) * hidden;
  for (int i = static_cast<int>(threadIdx.x); i < hidden; i += static_cast<int>(blockDim.x))
    to[i] += weights[slot] * rows[std::size_t{blockIdx.x} * hidden + i];
}
// Counts values that lie farther from the weights than rounding to e4m3 explains: half of a step of three bits, or of the
// smallest.
static __global__ void count_far_kernel(const Bf16Rows weights, const E4m3Rows codes, std::size_t rows, unsigned* far) {
  for (std::size_t n = blockIdx.x; n < rows; n += gridDim.x)
    for (int k = static_cast<int>(threadIdx.x); k < weights.k; k += static_cast<int>(blockDim.x)) {
      const double scale = static_cast<double>(codes.scales[n / block * (codes.k / block) + k / block]), exact = weights(n, k);
      if (!(fabs(codes(n, k) - exact) <= fmax(fabs(exact) * 0x1.01p-4, scale * 0x1.01p-10))) atomicAdd(far, 1u);
    }
}

// Throws where codes are not the weights rounded once. `far`: a place in device memory.
inline void require_near(Launch& launch, const Bf16Rows& weights, const E4m3Rows& codes, std::size_t rows, unsigned* far) {
  unsigned count = 0;
  check(cudaMemsetAsync(far, 0, sizeof count, launch.stream));
  launch(count_far_kernel, {1024, threads}, weights, codes, rows, far);
  check(cudaStreamSynchronize(launch.stream));
  check(cudaMemcpy(&count, far, sizeof count, cudaMemcpyDeviceToHost));
  check(cudaMemset(far, 0, sizeof count));
  if (count != 0) throw std::runtime_error{std::to_string(count) + " weights in e4m3 are not their originals rounded once"};
}

struct Shape {
  std::size_t tokens, hidden, ffn, experts, top_k;
  std::size_t slots() const { return tokens * top_k; }
};
inline constexpr std::size_t most_rows = 1024;  // of an expert that are computed at a time

// In doubles.
inline std::size_t workspace(const Shape& s) {
  return most_rows * (s.hidden + 3 * s.ffn + std::max(s.hidden, s.experts)) + s.slots();
}

class Layer {
 public:
  // `out`: [tokens][hidden]; `slots`: a place for as many numbers.
  Layer(const Shape& shape, const bf16* x, double* space, double* out, int* slots)
      : s_{shape}, x_{x}, rows_{space}, out_{out}, slots_{slots} {}

  // The experts of each token and their weights.
  void choose(Launch& launch, const Bf16Rows& gate, std::span<const double> bias) {
    std::vector<double> logits(s_.tokens * s_.experts);
    std::vector<int> first_slots(s_.tokens), order(s_.experts);
    for (std::size_t token = 0; token < s_.tokens; ++token) first_slots[token] = static_cast<int>(token * s_.top_k);
    check(cudaMemcpy(slots_, first_slots.data(), s_.tokens * sizeof(int), cudaMemcpyHostToDevice));
    for (std::size_t first = 0; first < s_.tokens; first += most_rows) {
      const std::size_t count = std::min(most_rows, s_.tokens - first);
      launch(rows_kernel, {static_cast<unsigned>(count), threads}, x_, slots_ + first, rows_, s_.top_k, s_.hidden);
      multiply(launch, rows_, gate, 0, results(), static_cast<int>(count), static_cast<int>(s_.experts), gate.k);
      check(cudaStreamSynchronize(launch.stream));
      check(
          cudaMemcpy(logits.data() + first * s_.experts, results(), count * s_.experts * sizeof(double), cudaMemcpyDeviceToHost));
    }
    chosen_.resize(s_.slots()), weights_.resize(s_.slots());
    for (std::size_t token = 0; token < s_.tokens; ++token) {
      const auto logit = [&](int e) {
        return logits[token * s_.experts + static_cast<std::size_t>(e)] + bias[static_cast<std::size_t>(e)];
      };
      std::iota(order.begin(), order.end(), 0);
      std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(s_.top_k), order.end(),
                        [&](int a, int b) { return logit(a) > logit(b) || (logit(a) == logit(b) && a < b); });
      double sum = 0;
      for (std::size_t k = 0; k < s_.top_k; ++k) sum += std::exp(logit(order[k]) - logit(order[0]));
      for (std::size_t k = 0; k < s_.top_k; ++k) {
        chosen_[token * s_.top_k + k] = order[k];
        weights_[token * s_.top_k + k] = std::exp(logit(order[k]) - logit(order[0])) / sum;
      }
    }
  }

  // `rounds`: tokens and activations to e4m3.
  template <class Weights>
  void compute(Launch& launch, const Weights& up, const Weights& down, bool rounds, std::vector<double>& to) const {
    const moe::Grouped grouped = moe::group_by_expert(chosen_, s_.experts);
    const int hidden = up.k, ffn = down.k;
    double *const h = rows_ + most_rows * s_.hidden, *const active = h + most_rows * 2 * s_.ffn,
                  *const weights = results() + most_rows * std::max(s_.hidden, s_.experts);
    check(cudaMemcpy(slots_, grouped.slot_of_row.data(), s_.slots() * sizeof(int), cudaMemcpyHostToDevice));
    check(cudaMemcpy(weights, weights_.data(), s_.slots() * sizeof(double), cudaMemcpyHostToDevice));
    check(cudaMemsetAsync(out_, 0, s_.tokens * s_.hidden * sizeof(double), launch.stream));
    for (std::size_t expert = 0; expert < s_.experts; ++expert)
      for (int first = grouped.offsets[expert]; first < grouped.offsets[expert + 1]; first += static_cast<int>(most_rows)) {
        const int count = std::min(static_cast<int>(most_rows), grouped.offsets[expert + 1] - first);
        const Grid per_row{static_cast<unsigned>(count), threads};
        launch(rows_kernel, per_row, x_, slots_ + first, rows_, s_.top_k, hidden);
        if (rounds) launch(round_kernel, {static_cast<unsigned>(count * (hidden / block)), block}, rows_);
        multiply(launch, rows_, up, expert * 2 * s_.ffn, h, count, 2 * ffn, hidden);
        launch(swiglu_kernel, per_row, h, active, ffn);
        if (rounds) launch(round_kernel, {static_cast<unsigned>(count * (ffn / block)), block}, active);
        multiply(launch, active, down, expert * s_.hidden, results(), count, hidden, ffn);
        launch(add_kernel, per_row, results(), slots_ + first, weights, out_, s_.top_k, hidden);
      }
    to.resize(s_.tokens * s_.hidden);
    check(cudaStreamSynchronize(launch.stream));
    check(cudaMemcpy(to.data(), out_, to.size() * sizeof(double), cudaMemcpyDeviceToHost));
  }

 private:
  double* results() const { return rows_ + most_rows * (s_.hidden + 3 * s_.ffn); }

  Shape s_;
  const bf16* x_;
  double *rows_, *out_;
  int* slots_;
  std::vector<int> chosen_;
  std::vector<double> weights_;
};

}  // namespace aisp::ch20::layer::reference
