// SPDX-License-Identifier: Apache-2.0
// The kernels of a small decode step in float64: attention over a cache, and a product with ReLU, each of which keeps a share of
// the state.
#pragma once
#include <cmath>
#include <cstddef>
#include <vector>

namespace aisp::ch12::decode {

constexpr int width = 256, heads = 4, head_width = width / heads;
constexpr float kept = 0.8f;  // of the state, by each kernel

inline std::vector<double> attended(const std::vector<double>& x, const double* keys, const double* values, int length) {
  std::vector<double> y(width);
  for (std::size_t head = 0; head < heads; ++head) {
    std::vector<double> shares(static_cast<std::size_t>(length));
    const std::size_t first = head * head_width;
    double most = -INFINITY, total = 0;
    for (std::size_t key = 0; key < shares.size(); ++key) {
      double score = 0;
      for (std::size_t i = first; i < first + head_width; ++i) score += x[i] * keys[key * width + i];
      shares[key] = score * 0.125;
      most = std::fmax(most, shares[key]);
    }
    for (double& share : shares) total += share = std::exp(share - most);
    for (std::size_t i = first; i < first + head_width; ++i) {
      double sum = 0;
      for (std::size_t key = 0; key < shares.size(); ++key) sum += shares[key] / total * values[key * width + i];
      y[i] = double{kept} * x[i] + sum;
    }
  }
  return y;
}
inline std::vector<double> multiplied(const std::vector<double>& x, const double* weights, const double* bias) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  std::vector<double> y(width);
  for (std::size_t row = 0; row < width; ++row) {
    double sum = 0;
    for (std::size_t i = 0; i < width; ++i) sum += weights[row * width + i] * x[i];
    y[row] = double{kept} * x[row] + std::fmax(sum / std::sqrt(squares / width) + bias[row], 0.0);
  }
  return y;
}

}  // namespace aisp::ch12::decode
