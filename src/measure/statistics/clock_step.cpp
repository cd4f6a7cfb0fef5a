// SPDX-License-Identifier: Apache-2.0
#include "measure/statistics/clock_step.hpp"

#include <algorithm>
#include <cmath>
#include <map>

namespace aisp::measure {
namespace {

// "The resolution of this timer is around 0.5 microseconds" (CUDA Runtime API, cudaEventElapsedTime): no clock in use is coarser,
// so readings further apart differ for other reasons.
constexpr double largest_step_ms = 5e-4;
// Events are read as float: two that differ by less are equal.
constexpr double rounding = 4 * 6e-8;

bool equal(double a, double b) { return std::abs(a - b) <= rounding * std::max(std::abs(a), std::abs(b)); }

}  // namespace

double clock_step_ms(std::span<const std::vector<double>> series) {
  double step = largest_step_ms;
  bool ties = false;
  for (const std::vector<double>& readings : series) {
    std::vector<double> sorted = readings;
    std::sort(sorted.begin(), sorted.end());
    for (std::size_t i = 1; i < sorted.size(); ++i) {
      if (equal(sorted[i], sorted[i - 1])) ties = true;
      else step = std::min(step, sorted[i] - sorted[i - 1]);
    }
  }
  return ties ? step : 0;
}

std::vector<double> spread_over_step(std::span<const double> readings, double step) {
  std::vector<double> spread(readings.begin(), readings.end());
  if (!(step > 0)) return spread;
  // Multiples of the golden ratio, modulo 1, fill an interval evenly for any number of them; the first is its middle.
  constexpr double golden_ratio = 0.6180339887498949;
  std::map<long long, int> seen;
  for (double& value : spread) {
    if (!std::isfinite(value)) continue;
    const double share = 0.5 + golden_ratio * seen[std::llround(value / step)]++;
    value += (share - std::floor(share) - 0.5) * step;
  }
  return spread;
}

}  // namespace aisp::measure
