// SPDX-License-Identifier: Apache-2.0
// AdamW in float64, and the gradients on which optimizers with narrow moments are compared with it over many steps.
#pragma once
#include <cuda_bf16.h>
#include <aisp/generators.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace aisp::ch13 {

inline constexpr unsigned block_values = 256;  // that share a scale

struct Adam {
  float learning_rate, beta1, beta2, epsilon, decay, inverse_bias1, inverse_bias2;
};
inline Adam adam_at(int step) {
  Adam adam{.learning_rate = 1e-3f, .beta1 = 0.9f, .beta2 = 0.999f, .epsilon = 1e-8f, .decay = 0.01f};
  adam.inverse_bias1 = static_cast<float>(1 / (1 - std::pow(double{adam.beta1}, step)));
  adam.inverse_bias2 = static_cast<float>(1 / (1 - std::pow(double{adam.beta2}, step)));
  return adam;
}
inline void update_on_host(const Adam& adam, double gradient, double& weight, double& m, double& v) {
  m = double{adam.beta1} * m + (1 - double{adam.beta1}) * gradient;
  v = double{adam.beta2} * v + (1 - double{adam.beta2}) * gradient * gradient;
  const double direction = double{adam.inverse_bias1} * m / (std::sqrt(double{adam.inverse_bias2} * v) + double{adam.epsilon});
  weight -= double{adam.learning_rate} * (double{adam.decay} * weight + direction);
}

// Twenty and two hundred steps from zero, of blocks of different kinds, whose changes of weights are compared with float64.
inline constexpr std::size_t drift_blocks = 64, drift_count = drift_blocks * block_values, outlier_block = 9;
inline constexpr int few_steps = 20, many_steps = 200;
inline constexpr double most_error = 0.12;

// Gradients of a block are alike or differ by a factor of up to e^2, have a mean or not, or stay the same for all steps; one
// block has none, and one has a single value that makes all others of the block small beside it.
inline float drift_gradient(int step, std::size_t i) {
  const std::size_t block = i / block_values;
  if (block == 5) return 0;
  if (block == outlier_block && i % block_values == 17) return 1e4f;
  const float drawn = pattern_value<float>(normal(0, 1), 1, static_cast<std::size_t>(step) * drift_count + i);
  const float size = 1e-3f * std::exp(pattern_value<float>(uniform(-1, 1), 2, i));
  switch (block % 4) {
    case 0: return size * (0.5f + drawn);
    case 1: return 1e-3f * drawn;
    case 2: return size;
    default: return size * drawn;
  }
}

struct Drift {
  double few = 0, many = 0;  // relative L2 of the change of weights after few and many steps
};

class DriftReference {
 public:
  std::vector<__nv_bfloat16> gradients;  // of all steps

  DriftReference() : gradients(many_steps * drift_count) {
    for (std::size_t i = 0; i < gradients.size(); ++i)
      gradients[i] = __float2bfloat16(drift_gradient(static_cast<int>(i / drift_count), i % drift_count));
  }
  void take(int step) {
    const __nv_bfloat16* const own = gradients.data() + static_cast<std::size_t>(step - 1) * drift_count;
    for (std::size_t i = 0; i < drift_count; ++i)
      update_on_host(adam_at(step), static_cast<double>(__bfloat162float(own[i])), weights_[i], m_[i], v_[i]);
  }
  // Returns the error over all blocks but that of the outlier, whose small values have no codes: their steps are only bounded.
  double error_of(const std::vector<float>& found, int step) const {
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const auto weight = static_cast<double>(found[i]);
      if (!(std::abs(weight) <= 5e-3 * step))
        throw std::runtime_error{"a weight has moved by " + std::to_string(weight) + " in " + std::to_string(step) + " steps"};
      if (i / block_values == outlier_block) continue;
      error += (weight - weights_[i]) * (weight - weights_[i]);
      norm += weights_[i] * weights_[i];
    }
    return std::sqrt(error / norm);
  }

 private:
  std::vector<double> weights_ = std::vector<double>(drift_count), m_ = weights_, v_ = weights_;
};

// A moment that is kept: at most `steps` values of E4M3 away from what it should be. Three bits of mantissa above 2^-6 of the
// scale, steps of 2^-9 below; the smallest root that is not zero keeps one step.
inline void check_code(double found, double expected, double scale, double steps, bool is_root) {
  const double step = scale * std::exp2(std::max(-9.0, std::floor(std::log2(std::abs(expected) / scale + 1e-30)) - 3));
  const double wanted = is_root && expected > 0 ? std::max(expected, scale * 0x1p-9) : expected;
  if (!(std::abs(found - wanted) <= (steps + 1e-3) * step))
    throw std::runtime_error{"a moment is kept as " + std::to_string(found) + ", not " + std::to_string(wanted)};
}

}  // namespace aisp::ch13
