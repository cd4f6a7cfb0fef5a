// SPDX-License-Identifier: Apache-2.0
// Data of the training step's tests: small, drawn by a fixed generator.
#pragma once
#include <cuda_bf16.h>

#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

#include "device/on_gpu.hpp"

namespace aisp::training::test {

using Values = std::vector<double>;

// Normal values that bf16 holds exactly.
inline Values drawn(std::size_t count, unsigned seed, double deviation, double mean = 0) {
  std::mt19937 generator{seed};
  std::normal_distribution<double> normal{mean, deviation};
  Values values(count);
  for (double& value : values)
    value = static_cast<double>(__bfloat162float(__float2bfloat16_rn(static_cast<float>(normal(generator)))));
  return values;
}
inline std::vector<__nv_bfloat16> narrow(const Values& values) {
  std::vector<__nv_bfloat16> result;
  for (const double value : values) result.push_back(__float2bfloat16_rn(static_cast<float>(value)));
  return result;
}
template <class T>
Values wide(const std::vector<T>& values) {
  Values result;
  for (const T value : values) result.push_back(static_cast<double>(static_cast<float>(value)));
  return result;
}

// ||found - wanted|| / ||wanted||; infinity where there is a NaN.
inline double distance(const Values& found, const Values& wanted) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    difference += (found[i] - wanted[i]) * (found[i] - wanted[i]);
    norm += wanted[i] * wanted[i];
  }
  return difference <= 1e300 ? std::sqrt(difference / norm) : INFINITY;
}

}  // namespace aisp::training::test
