// SPDX-License-Identifier: Apache-2.0
// The gradients of attention in float64 on the CPU, all of them.
#pragma once
#include <aisp/buffers.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <thread>
#include <vector>

namespace aisp::attention_engine {

struct GradientSizes {
  std::size_t kv_heads, group, tokens, head_size;  // kv_heads: of all sequences; group: heads of Q to each
  bool causal;
};

// By the definition. Q, dO and dQ: [head][row][head_size], K, V, dK and dV: [KV head][row][head_size].
class GradientsReference {
 public:
  template <class T>
  GradientsReference(const GradientSizes& sizes, const Input<T>& q, const Input<T>& k, const Input<T>& v, const Input<T>& d_o,
                     int cpus)
      : sizes_{sizes},
        q_{widened(q)},
        k_{widened(k)},
        v_{widened(v)},
        d_o_{widened(d_o)},
        gradients{std::vector<double>(q_.size()), std::vector<double>(k_.size()), std::vector<double>(v_.size())} {
    std::vector<std::thread> workers;
    for (int w = 0; w < cpus; ++w)
      workers.emplace_back([this, w, cpus] {
        for (auto i = static_cast<std::size_t>(w); i < sizes_.kv_heads; i += static_cast<std::size_t>(cpus)) of_kv_head(i);
      });
    for (std::thread& worker : workers) worker.join();
  }

 private:
  template <class T>
  static std::vector<double> widened(const Input<T>& input) {
    std::vector<double> values(input.size());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = input.host(i);
    return values;
  }
  double product(const double* x, const double* y) const {
    double sum = 0;
    for (std::size_t d = 0; d < sizes_.head_size; ++d) sum += x[d] * y[d];
    return sum;
  }
  void add(double factor, const double* from, double* to) const {
    for (std::size_t d = 0; d < sizes_.head_size; ++d) to[d] += factor * from[d];
  }
  void of_kv_head(std::size_t kv_head) {
    for (std::size_t i = 0; i < sizes_.group; ++i)
      for (std::size_t row = 0; row < sizes_.tokens; ++row) of_row(kv_head, kv_head * sizes_.group + i, row);
  }
  void of_row(std::size_t kv_head, std::size_t head, std::size_t row) {
    const std::size_t keys = sizes_.causal ? row + 1 : sizes_.tokens, at = (head * sizes_.tokens + row) * sizes_.head_size;
    const double scale = 1 / std::sqrt(static_cast<double>(sizes_.head_size));
    const auto of_key = [&](std::size_t key) { return (kv_head * sizes_.tokens + key) * sizes_.head_size; };
    std::vector<double> weights(keys), d_weights(keys);
    double sum = 0, mean = 0;
    for (std::size_t key = 0; key < keys; ++key) {
      weights[key] = std::exp(scale * product(&q_[at], &k_[of_key(key)]));  // float64 reaches to exp(709)
      sum += weights[key];
    }
    for (std::size_t key = 0; key < keys; ++key) {
      weights[key] /= sum;
      d_weights[key] = product(&d_o_[at], &v_[of_key(key)]);
      mean += weights[key] * d_weights[key];
    }
    for (std::size_t key = 0; key < keys; ++key) {
      const double d_score = weights[key] * (d_weights[key] - mean) * scale;
      add(d_score, &k_[of_key(key)], &gradients[0][at]);
      add(d_score, &q_[at], &gradients[1][of_key(key)]);
      add(weights[key], &d_o_[at], &gradients[2][of_key(key)]);
    }
  }

  GradientSizes sizes_;
  std::vector<double> q_, k_, v_, d_o_;

 public:
  std::vector<double> gradients[3];  // dQ, dK, dV
};

}  // namespace aisp::attention_engine
