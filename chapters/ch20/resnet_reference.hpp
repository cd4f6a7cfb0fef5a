// SPDX-License-Identifier: Apache-2.0
// Bottlenecks of a residual network in float64 on the CPU, by plain loops over images with channels last, for a check shape.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "resnet_rows.cuh"

namespace aisp::ch20::resnet::reference {

using Values = std::vector<double>;

struct Channel {
  double mean, variance, gain, bias;
};

// A convolution with its batch norm: weights [out][tap][in].
struct Layer {
  std::size_t in, out, filter;
  Values weights;
  std::vector<Channel> channels;

  Values operator()(const Values& x) const {
    const std::size_t images = x.size() / (pixels * in);
    Values y(images * pixels * out);
    const int reach = static_cast<int>(filter / 2);
    for (std::size_t image = 0; image < images; ++image)
      for (int pixel = 0; pixel < pixels; ++pixel)
        for (std::size_t tap = 0; tap < filter * filter; ++tap) {
          const int line = pixel / side + static_cast<int>(tap / filter) - reach,
                    column = pixel % side + static_cast<int>(tap % filter) - reach;
          if (line < 0 || line >= side || column < 0 || column >= side) continue;
          const double* const from = &x[(image * pixels + static_cast<std::size_t>(line * side + column)) * in];
          for (std::size_t o = 0; o < out; ++o) {
            const double* const w = &weights[(o * filter * filter + tap) * in];
            double sums[8] = {};
            for (std::size_t c = 0; c < in; c += 8)
              for (std::size_t k = 0; k < 8; ++k) sums[k] += from[c + k] * w[c + k];
            double& sum = y[(image * pixels + static_cast<std::size_t>(pixel)) * out + o];
            for (const double part : sums) sum += part;
          }
        }
    for (std::size_t i = 0; i < y.size(); ++i) {
      const Channel& of = channels[i % out];
      y[i] = (y[i] - of.mean) / std::sqrt(of.variance + static_cast<double>(norm_epsilon)) * of.gain + of.bias;
    }
    return y;
  }
};

inline Values relu(Values x) {
  for (double& value : x) value = std::max(value, 0.0);
  return x;
}
inline Values bottleneck(const Values& x, const Layer& reduce, const Layer& middle, const Layer& expand) {
  Values y = expand(relu(middle(relu(reduce(x)))));
  for (std::size_t i = 0; i < y.size(); ++i) y[i] += x[i];
  return relu(std::move(y));
}

}  // namespace aisp::ch20::resnet::reference
