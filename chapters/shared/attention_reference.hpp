// SPDX-License-Identifier: Apache-2.0
// Attention in float64 on the CPU, for sampled outputs.
#pragma once
#include <aisp/buffers.hpp>

#include <cmath>
#include <cstddef>
#include <thread>
#include <vector>

namespace aisp::shared {

// Q, K and V: [head][row][depth]; with `causal`, a row sees its own key and those before it. One output takes all keys of its
// head, so K is kept, a head's columns one after the other: the scores of all keys are then summed side by side.
class AttentionReference {
 public:
  AttentionReference(std::size_t heads, std::size_t length, std::size_t depth, bool causal = false)
      : heads_{heads}, length_{length}, depth_{depth}, causal_{causal} {}

  // After every refill.
  template <class T>
  void keep(const Input<T>& k, int cpus) {
    columns_.resize(heads_ * depth_ * length_);
    std::vector<std::thread> workers;
    for (int w = 0; w < cpus; ++w)
      workers.emplace_back([this, &k, w, cpus] {
        for (std::size_t column = static_cast<std::size_t>(w); column < heads_ * depth_; column += static_cast<std::size_t>(cpus))
          for (std::size_t key = 0; key < length_; ++key)
            columns_[column * length_ + key] =
                static_cast<float>(k.host((column / depth_ * length_ + key) * depth_ + column % depth_));
      });
    for (std::thread& worker : workers) worker.join();
  }

  template <class T>
  double output(std::size_t index, const Input<T>& q, const Input<T>& v) const {
    const std::size_t row = index / depth_, head = row / length_, keys = causal_ ? row % length_ + 1 : length_;
    std::vector<double> scores(keys);
    for (std::size_t i = 0; i < depth_; ++i) {
      const double factor = q.host(row * depth_ + i) / std::sqrt(static_cast<double>(depth_));
      const float* column = &columns_[(head * depth_ + i) * length_];
      for (std::size_t key = 0; key < keys; ++key) scores[key] += factor * static_cast<double>(column[key]);
    }
    double sum = 0, weights = 0;  // float64 reaches to exp(709): no maximum need be taken off
    for (std::size_t key = 0; key < keys; ++key) {
      const double weight = std::exp(scores[key]);
      weights += weight;
      sum += weight * v.host((head * length_ + key) * depth_ + index % depth_);
    }
    return sum / weights;
  }

 private:
  std::size_t heads_, length_, depth_;
  bool causal_;
  std::vector<float> columns_;
};

}  // namespace aisp::shared
