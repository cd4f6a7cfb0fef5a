// SPDX-License-Identifier: Apache-2.0
// A GPT's loss and the gradients of all its weights in float64 on the CPU, by plain loops: for a check shape.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "gpt_model.hpp"

namespace aisp::ch20::gpt::reference {

using Values = std::vector<double>;

// c[i][j] += the sum over p of a(i, p) b(p, j), each factor with a stride for both of its indices.
struct Factor {
  const double* data;
  std::size_t row, column;
};
inline Factor rows_of(const double* data, std::size_t columns) { return {data, columns, 1}; }
inline Factor columns_of(const double* data, std::size_t columns) { return {data, 1, columns}; }
inline void multiply(const Factor& a, const Factor& b, double* c, std::size_t m, std::size_t n, std::size_t k) {
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t p = 0; p < k; ++p) {
      const double factor = a.data[i * a.row + p * a.column];
      for (std::size_t j = 0; j < n; ++j) c[i * n + j] += factor * b.data[p * b.row + j * b.column];
    }
}

class Step {
 public:
  Step(const Shape& shape, Values weights, std::vector<int> tokens, std::vector<int> labels)
      : s_{shape}, w_{std::move(weights)}, tokens_{std::move(tokens)}, labels_{std::move(labels)} {}

  double loss() const { return loss_; }
  const Values& gradients() const { return g_; }

  void run() {
    const std::size_t rows = s_.rows(), width = s_.width;
    g_.assign(w_.size(), 0);
    kept_.assign(s_.layers, {});
    Values x(rows * width);
    for (std::size_t row = 0; row < rows; ++row)
      for (std::size_t i = 0; i < width; ++i)
        x[row * width + i] = w_[word(row) * width + i] + w_[s_.places_at() + row % s_.length * width + i];
    for (std::size_t layer = 0; layer < s_.layers; ++layer) x = forward(layer, std::move(x));

    const double* const last = w_.data() + s_.last_norm_at();
    const Values normed = norm(x, last);
    Values logits(rows * s_.words), d_normed(rows * width);
    multiply(rows_of(normed.data(), width), columns_of(w_.data(), width), logits.data(), rows, s_.words, width);
    lose(logits);
    multiply(rows_of(logits.data(), s_.words), rows_of(w_.data(), width), d_normed.data(), rows, width, s_.words);
    multiply(columns_of(logits.data(), s_.words), rows_of(normed.data(), width), g_.data(), s_.words, width, rows);
    Values dx(rows * width);
    norm_backward(x, last, d_normed, g_.data() + s_.last_norm_at(), dx);
    for (std::size_t layer = s_.layers; layer-- > 0;) backward(layer, dx);
    for (std::size_t row = 0; row < rows; ++row)
      for (std::size_t i = 0; i < width; ++i) {
        g_[word(row) * width + i] += dx[row * width + i];
        g_[s_.places_at() + row % s_.length * width + i] += dx[row * width + i];
      }
  }

 private:
  struct Kept {
    Values x, normed_1, qkv, weights, attended, middle, normed_2, h, active;
  };

  std::size_t word(std::size_t row) const { return static_cast<std::size_t>(tokens_[row]); }
  Layer<const double> weights(std::size_t layer) const { return {s_, w_.data(), layer}; }

  Values norm(const Values& x, const double* weight) const {
    Values normed(x.size());
    for_rows(x, [&](std::size_t row, double mean, double inverse) {
      for (std::size_t i = 0; i < s_.width; ++i)
        normed[row * s_.width + i] = (x[row * s_.width + i] - mean) * inverse * (1 + weight[i]) + weight[s_.width + i];
    });
    return normed;
  }
  // Adds to dx.
  void norm_backward(const Values& x, const double* weight, const Values& dy, double* d_weight, Values& dx) const {
    const std::size_t width = s_.width;
    for_rows(x, [&](std::size_t row, double mean, double inverse) {
      double sum = 0, dot = 0;
      for (std::size_t i = 0; i < width; ++i) {
        const double normed = (x[row * width + i] - mean) * inverse, d = dy[row * width + i];
        d_weight[i] += d * normed;
        d_weight[width + i] += d;
        sum += d * (1 + weight[i]) / static_cast<double>(width);
        dot += d * (1 + weight[i]) * normed / static_cast<double>(width);
      }
      for (std::size_t i = 0; i < width; ++i) {
        const double normed = (x[row * width + i] - mean) * inverse;
        dx[row * width + i] += inverse * (dy[row * width + i] * (1 + weight[i]) - sum - normed * dot);
      }
    });
  }
  template <class Use>
  void for_rows(const Values& x, const Use& use) const {
    for (std::size_t row = 0; row < x.size() / s_.width; ++row) {
      double mean = 0, variance = 0;
      for (std::size_t i = 0; i < s_.width; ++i) mean += x[row * s_.width + i] / static_cast<double>(s_.width);
      for (std::size_t i = 0; i < s_.width; ++i)
        variance += std::pow(x[row * s_.width + i] - mean, 2) / static_cast<double>(s_.width);
      use(row, mean, 1 / std::sqrt(variance + 1e-5));
    }
  }

  // x W^T + bias.
  Values linear(const Values& x, const double* weight, const double* bias, std::size_t out, std::size_t in) const {
    Values y(s_.rows() * out);
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = bias[i % out];
    multiply(rows_of(x.data(), in), columns_of(weight, in), y.data(), s_.rows(), out, in);
    return y;
  }
  Values linear_backward(const Values& x, const double* weight, const Values& dy, double* d_weight, double* d_bias,
                         std::size_t out, std::size_t in) const {
    Values dx(s_.rows() * in);
    for (std::size_t i = 0; i < dy.size(); ++i) d_bias[i % out] += dy[i];
    multiply(columns_of(dy.data(), out), rows_of(x.data(), in), d_weight, out, in, s_.rows());
    multiply(rows_of(dy.data(), out), rows_of(weight, in), dx.data(), s_.rows(), in, out);
    return dx;
  }

  static double tangent(double x) { return std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)); }
  static double gelu(double x) { return 0.5 * x * (1 + tangent(x)); }
  static double gelu_slope(double x) {
    const double t = tangent(x);
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
  }

  template <class Use>
  void for_heads(const Use& use) const {
    for (std::size_t sequence = 0; sequence < s_.sequences; ++sequence)
      for (std::size_t head = 0; head < s_.heads(); ++head)
        use(sequence * s_.length, head * 64, (sequence * s_.heads() + head) * s_.length * s_.length);
  }
  void attend(Kept& k) const {
    const std::size_t pitch = 3 * s_.width;
    k.weights.assign(s_.sequences * s_.heads() * s_.length * s_.length, 0);
    k.attended.assign(s_.rows() * s_.width, 0);
    for_heads([&](std::size_t first, std::size_t column, std::size_t at) {
      for (std::size_t row = 0; row < s_.length; ++row) {
        double* const weight = k.weights.data() + at + row * s_.length;
        double sum = 0;
        for (std::size_t key = 0; key <= row; ++key) {
          const double *const q = &k.qkv[(first + row) * pitch + column], *const of_key =
                                                                              &k.qkv[(first + key) * pitch + s_.width + column];
          double score = 0;
          for (std::size_t i = 0; i < 64; ++i) score += q[i] * of_key[i] / 8;
          sum += weight[key] = std::exp(score);
        }
        for (std::size_t key = 0; key <= row; ++key) {
          weight[key] /= sum;
          for (std::size_t i = 0; i < 64; ++i)
            k.attended[(first + row) * s_.width + column + i] +=
                weight[key] * k.qkv[(first + key) * pitch + 2 * s_.width + column + i];
        }
      }
    });
  }
  Values attend_backward(const Kept& k, const Values& d) const {
    const std::size_t pitch = 3 * s_.width;
    Values d_qkv(s_.rows() * pitch);
    for_heads([&](std::size_t first, std::size_t column, std::size_t at) {
      for (std::size_t row = 0; row < s_.length; ++row) {
        const double *const weight = k.weights.data() + at + row * s_.length, *const d_row =
                                                                                  &d[(first + row) * s_.width + column];
        Values d_weights(row + 1);
        double sum = 0;
        for (std::size_t key = 0; key <= row; ++key) {
          for (std::size_t i = 0; i < 64; ++i) {
            d_weights[key] += d_row[i] * k.qkv[(first + key) * pitch + 2 * s_.width + column + i];
            d_qkv[(first + key) * pitch + 2 * s_.width + column + i] += weight[key] * d_row[i];
          }
          sum += weight[key] * d_weights[key];
        }
        for (std::size_t key = 0; key <= row; ++key) {
          const double d_score = weight[key] * (d_weights[key] - sum) / 8;
          for (std::size_t i = 0; i < 64; ++i) {
            d_qkv[(first + row) * pitch + column + i] += d_score * k.qkv[(first + key) * pitch + s_.width + column + i];
            d_qkv[(first + key) * pitch + s_.width + column + i] += d_score * k.qkv[(first + row) * pitch + column + i];
          }
        }
      }
    });
    return d_qkv;
  }

  Values forward(std::size_t layer, Values x) {
    Kept& k = kept_[layer];
    const Layer<const double> w = weights(layer);
    const std::size_t width = s_.width;
    k.x = std::move(x);
    k.normed_1 = norm(k.x, w.norm_1);
    k.qkv = linear(k.normed_1, w.qkv, w.qkv_bias, 3 * width, width);
    attend(k);
    k.middle = linear(k.attended, w.out, w.out_bias, width, width);
    for (std::size_t i = 0; i < k.x.size(); ++i) k.middle[i] += k.x[i];
    k.normed_2 = norm(k.middle, w.norm_2);
    k.h = linear(k.normed_2, w.up, w.up_bias, 4 * width, width);
    k.active = k.h;
    for (double& value : k.active) value = gelu(value);
    Values y = linear(k.active, w.down, w.down_bias, width, 4 * width);
    for (std::size_t i = 0; i < y.size(); ++i) y[i] += k.middle[i];
    return y;
  }
  void backward(std::size_t layer, Values& dx) {
    const Kept& k = kept_[layer];
    const Layer<const double> w = weights(layer);
    const Layer<double> g{s_, g_.data(), layer};
    const std::size_t width = s_.width;
    Values d_h = linear_backward(k.active, w.down, dx, g.down, g.down_bias, width, 4 * width);
    for (std::size_t i = 0; i < d_h.size(); ++i) d_h[i] *= gelu_slope(k.h[i]);
    norm_backward(k.middle, w.norm_2, linear_backward(k.normed_2, w.up, d_h, g.up, g.up_bias, 4 * width, width), g.norm_2, dx);
    const Values d_attended = linear_backward(k.attended, w.out, dx, g.out, g.out_bias, width, width);
    const Values d_qkv = attend_backward(k, d_attended);
    norm_backward(k.x, w.norm_1, linear_backward(k.normed_1, w.qkv, d_qkv, g.qkv, g.qkv_bias, 3 * width, width), g.norm_1, dx);
  }

  // The mean loss of the labels that count; logits become their gradient.
  void lose(Values& logits) {
    const auto counted =
        static_cast<double>(std::max<std::ptrdiff_t>(std::ranges::count_if(labels_, [](int l) { return l >= 0; }), 1));
    loss_ = 0;
    for (std::size_t row = 0; row < labels_.size(); ++row) {
      const std::span<double> own{logits.data() + row * s_.words, s_.words};
      if (labels_[row] < 0) {
        std::ranges::fill(own, 0);
        continue;
      }
      const double highest = *std::ranges::max_element(own);
      double sum = 0;
      for (const double logit : own) sum += std::exp(logit - highest);
      loss_ += (highest + std::log(sum) - own[static_cast<std::size_t>(labels_[row])]) / counted;
      for (double& logit : own) logit = std::exp(logit - highest) / sum / counted;
      own[static_cast<std::size_t>(labels_[row])] -= 1 / counted;
    }
  }

  Shape s_;
  Values w_;
  std::vector<int> tokens_, labels_;
  std::vector<Kept> kept_;
  Values g_;
  double loss_ = 0;
};

}  // namespace aisp::ch20::gpt::reference
