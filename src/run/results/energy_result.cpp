// SPDX-License-Identifier: Apache-2.0
#include "run/results/assemble.hpp"

#include <algorithm>

#include "evidence/range.hpp"
#include "measure/statistics/statistics.hpp"

namespace aisp::run {

std::optional<evidence::Energy> energy_of(const std::vector<measure::EnergyWindow>& windows, const evidence::DeclaredCost& cost,
                                          const std::vector<double>& steps_s) {
  if (windows.empty()) return std::nullopt;
  evidence::Energy energy;
  double joules = 0, seconds = 0, busy_s = 0;
  for (const measure::EnergyWindow& window : windows) {
    energy.raw_j.push_back(window.joules_a_run());
    energy.runs += window.runs;
    joules += window.joules;
    seconds += window.seconds;
    busy_s += window.run_s * static_cast<double>(window.runs);
  }
  const evidence::Range range = evidence::median_range(energy.raw_j);
  energy.median_j = range.value;
  energy.low_j = range.low;
  energy.high_j = range.high;
  energy.average_w = joules / seconds;
  energy.run_ms = busy_s * 1e3 / static_cast<double>(energy.runs);
  if (range.value > 0) {
    energy.gflop_per_j = cost.flops * 1e-9 / range.value;
    energy.gb_per_j = cost.bytes * 1e-9 / range.value;
  }
  if (!steps_s.empty()) energy.counter_step_ms = measure::median(steps_s) * 1e3;
  return energy;
}

evidence::EnergyRatio energy_ratio(const std::vector<measure::EnergyWindow>& baseline,
                                   const std::vector<measure::EnergyWindow>& variant) {
  std::vector<double> ratios;
  for (std::size_t round = 0; round < std::min(baseline.size(), variant.size()); ++round)
    ratios.push_back(baseline[round].joules_a_run() / variant[round].joules_a_run());
  const evidence::Range range = evidence::median_range(ratios);
  return {range.value, range.low, range.high};
}

}  // namespace aisp::run
