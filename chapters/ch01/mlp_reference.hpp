// SPDX-License-Identifier: Apache-2.0
// SGD steps of a three-layer perceptron in float64 on the CPU: tanh after the first two layers, mean squared error, no biases.
#pragma once
#include <aisp/threads.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

namespace aisp::ch01 {

class MlpReference {
 public:
  using Matrix = std::vector<double>;  // row-major

  // widths: of the input, the two hidden layers and the output, multiples of 8, like the batch.
  MlpReference(ThreadTeam& team, std::size_t batch, std::array<std::size_t, 4> widths)
      : team_{team}, batch_{batch}, widths_{widths} {}

  // weights[l] is [widths[l]][widths[l + 1]].
  std::array<Matrix, 3> weights;

  // One step on batch x with targets y; returns the loss before it.
  double step(const Matrix& x, const Matrix& y, double rate) {
    std::array<Matrix, 4> h{x, {}, {}, {}};
    for (std::size_t l = 0; l < 3; ++l) {
      h[l + 1].assign(batch_ * widths_[l + 1], 0);
      multiply(h[l + 1], h[l], widths_[l], 1, weights[l], batch_, widths_[l], 1);
      if (l < 2)
        for (double& value : h[l + 1]) value = std::tanh(value);
    }
    const auto count = static_cast<double>(y.size());
    double loss = 0;
    Matrix gradient(y.size());
    for (std::size_t i = 0; i < y.size(); ++i) {
      const double difference = h[3][i] - y[i];
      loss += difference * difference / count;
      gradient[i] = 2 * difference / count;
    }
    for (std::size_t l = 3; l-- > 0;) {
      Matrix before = l > 0 ? backward(gradient, l, h[l]) : Matrix{};
      multiply(weights[l], h[l], 1, widths_[l], gradient, widths_[l], batch_, -rate);
      gradient = std::move(before);
    }
    return loss;
  }

 private:
  // The gradient before the tanh whose results are h, from the gradient after layer l.
  Matrix backward(const Matrix& gradient, std::size_t l, const Matrix& h) {
    const std::size_t in = widths_[l], out = widths_[l + 1];
    Matrix transposed(in * out), before(batch_ * in, 0);
    for (std::size_t i = 0; i < in; ++i)
      for (std::size_t o = 0; o < out; ++o) transposed[o * in + i] = weights[l][i * out + o];
    multiply(before, gradient, out, 1, transposed, batch_, out, 1);
    for (std::size_t i = 0; i < before.size(); ++i) before[i] *= 1 - h[i] * h[i];
    return before;
  }

  // c += scale * a b, where a(i, k) is a[i * row_step + k * k_step]. Eight rows and a stretch of columns stay in the cache.
  void multiply(Matrix& c, const Matrix& a, std::size_t row_step, std::size_t k_step, const Matrix& b, std::size_t rows,
                std::size_t depth, double scale) {
    constexpr std::size_t strip = 8, stretch = 256;
    const std::size_t columns = c.size() / rows, stride = strip * static_cast<std::size_t>(team_.size());
    team_.run([&](int worker) {
      for (std::size_t top = strip * static_cast<std::size_t>(worker); top < rows; top += stride)
        for (std::size_t left = 0; left < columns; left += stretch)
          for (std::size_t k = 0; k < depth; ++k)
            for (std::size_t i = top; i < top + strip; ++i) {
              const double factor = scale * a[i * row_step + k * k_step];
              const double* const from = &b[k * columns];
              double* const to = &c[i * columns];
              for (std::size_t j = left; j < std::min(left + stretch, columns); ++j) to[j] += factor * from[j];
            }
    });
  }

  ThreadTeam& team_;
  std::size_t batch_;
  std::array<std::size_t, 4> widths_;
};

}  // namespace aisp::ch01
