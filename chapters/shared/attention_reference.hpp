// SPDX-License-Identifier: Apache-2.0
// Attention in float64 on the CPU, for sampled outputs.
#pragma once
#include <aisp/buffers.hpp>

#include <cmath>
#include <cstddef>
#include <thread>
#include <vector>

namespace aisp::shared {

// Q, K and V: [head][row][head_size], `group` heads of Q to one of K and V; with `causal`, a row sees its own key and those
// before it. One output takes all keys of its head, so K is kept, a head's columns one after the other: the scores of all keys
// are then summed side by side.
class AttentionReference {
 public:
  AttentionReference(std::size_t heads, std::size_t length, std::size_t head_size, bool causal = false, std::size_t group = 1)
      : kv_heads_{heads / group}, group_{group}, length_{length}, head_size_{head_size}, causal_{causal} {}

  // After every refill.
  template <class T>
  void keep(const Input<T>& k, int cpus) {
    columns_.resize(kv_heads_ * head_size_ * length_);
    std::vector<std::thread> workers;
    for (int w = 0; w < cpus; ++w)
      workers.emplace_back([this, &k, w, cpus] {
        for (std::size_t column = static_cast<std::size_t>(w); column < kv_heads_ * head_size_;
             column += static_cast<std::size_t>(cpus))
          for (std::size_t key = 0; key < length_; ++key)
            columns_[column * length_ + key] =
                static_cast<float>(k.host((column / head_size_ * length_ + key) * head_size_ + column % head_size_));
      });
    for (std::thread& worker : workers) worker.join();
  }

  template <class T>
  double output(std::size_t index, const Input<T>& q, const Input<T>& v) const {
    const std::size_t row = index / head_size_, head = row / length_ / group_, keys = causal_ ? row % length_ + 1 : length_;
    std::vector<double> scores(keys);
    for (std::size_t i = 0; i < head_size_; ++i) {
      const double factor = q.host(row * head_size_ + i) / std::sqrt(static_cast<double>(head_size_));
      const float* column = &columns_[(head * head_size_ + i) * length_];
      for (std::size_t key = 0; key < keys; ++key) scores[key] += factor * static_cast<double>(column[key]);
    }
    double sum = 0, weights = 0;  // float64 reaches to exp(709): no maximum need be taken off
    for (std::size_t key = 0; key < keys; ++key) {
      const double weight = std::exp(scores[key]);
      weights += weight;
      sum += weight * v.host((head * length_ + key) * head_size_ + index % head_size_);
    }
    return sum / weights;
  }

 private:
  std::size_t kv_heads_, group_, length_, head_size_;
  bool causal_;
  std::vector<float> columns_;
};

}  // namespace aisp::shared
