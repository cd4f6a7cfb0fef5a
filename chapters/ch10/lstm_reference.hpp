// SPDX-License-Identifier: Apache-2.0
// The hidden states of an LSTM layer in float64, on the CPU.
#pragma once
#include <aisp/buffers.hpp>

#include <cmath>
#include <cstddef>
#include <thread>
#include <vector>

namespace aisp::ch10::lstm {

// [steps][sequences][hidden], from input gates [steps][sequences][4][hidden] and weights [hidden][4][hidden]; gates in the order
// input, forget, candidate, output.
class Reference {
 public:
  using bf16 = __nv_bfloat16;
  Reference(std::size_t hidden, const Input<bf16>& inputs, const Input<bf16>& weights, const Input<bf16>& first_state,
            const Input<float>& first_cells)
      : hidden_{hidden},
        state_{first_state.size()},
        steps_{inputs.size() / (4 * state_)},
        inputs_{inputs},
        first_state_{first_state},
        first_cells_{first_cells},
        weights_(weights.size()) {
    for (std::size_t i = 0; i < weights_.size(); ++i) weights_[i] = static_cast<float>(weights.host(i));
  }

  // Sequences do not depend on one another: the threads share them out.
  std::vector<double> states(int threads) const {
    std::vector<double> result(steps_ * state_);
    std::vector<std::thread> workers;
    for (int w = 0; w < threads; ++w)
      workers.emplace_back([this, w, threads, &result] {
        for (auto i = static_cast<std::size_t>(w); i < state_ / hidden_; i += static_cast<std::size_t>(threads)) run(i, result);
      });
    for (std::thread& worker : workers) worker.join();
    return result;
  }

 private:
  void run(std::size_t sequence, std::vector<double>& result) const {
    const std::size_t rows = 4 * hidden_, first = sequence * hidden_;
    std::vector<double> h(hidden_), c(hidden_), gate(rows);
    for (std::size_t u = 0; u < hidden_; ++u) {
      h[u] = first_state_.host(first + u);
      c[u] = first_cells_.host(first + u);
    }
    for (std::size_t t = 0; t < steps_; ++t) {
      for (std::size_t r = 0; r < rows; ++r) gate[r] = inputs_.host(4 * (t * state_ + first) + r);
      for (std::size_t k = 0; k < hidden_; ++k)
        for (std::size_t r = 0; r < rows; ++r) gate[r] += h[k] * double{weights_[k * rows + r]};
      for (std::size_t u = 0; u < hidden_; ++u) {
        c[u] = sigmoid(gate[hidden_ + u]) * c[u] + sigmoid(gate[u]) * std::tanh(gate[2 * hidden_ + u]);
        h[u] = sigmoid(gate[3 * hidden_ + u]) * std::tanh(c[u]);
        result[t * state_ + first + u] = h[u];
      }
    }
  }
  static double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

  std::size_t hidden_, state_, steps_;
  const Input<bf16>&inputs_, &first_state_;
  const Input<float>& first_cells_;
  std::vector<float> weights_;
};

}  // namespace aisp::ch10::lstm
