// SPDX-License-Identifier: Apache-2.0
// Turns samples into results: offsets subtracted, summaries, metrics, energy and token latencies.
#pragma once
#include <aisp/workload.hpp>

#include <optional>
#include <vector>

#include "evidence/result.hpp"
#include "measure/energy.hpp"
#include "measure/sample.hpp"
#include "measure/statistics/ratio.hpp"

namespace aisp::run {

std::vector<double> raw_times_of(const std::vector<measure::Sample>& samples);
evidence::Timing timing_of(const std::vector<measure::Sample>& samples, const measure::Correction& correction,
                           const std::vector<double>& percentiles);

// Returns the value, or the rate that it is of the sample's time. `offset_ms`: the stopwatch's own, in that time.
double metric_value(const measure::MetricValue& value, const measure::Sample& sample, double offset_ms);
std::vector<evidence::Metric> metrics_of(const std::vector<measure::Sample>& samples, double offset_ms,
                                         const std::vector<double>& percentiles);

// Summarizes the windows; nothing without any.
std::optional<evidence::Energy> energy_of(const std::vector<measure::EnergyWindow>& windows, const evidence::DeclaredCost& cost,
                                          const std::vector<double>& steps_s);
// Returns the median and range of the rounds' own ratios, so that effects both share in a round (temperature, clock) cancel.
evidence::EnergyRatio energy_ratio(const std::vector<measure::EnergyWindow>& baseline,
                                   const std::vector<measure::EnergyWindow>& variant);

struct LatencyTargets {  // 0: none
  double ttft_ms = 0, tpot_ms = 0;
  bool any() const { return ttft_ms > 0 || tpot_ms > 0; }
};

// Summarizes token latencies; nothing if the variant marks no tokens. `offset_ms`: the stopwatch's own, in the time of each
// sample.
std::optional<evidence::InferenceTiming> inference_of(const std::vector<measure::Sample>& samples, double offset_ms,
                                                      const LatencyTargets& targets, const std::vector<double>& percentiles);

}  // namespace aisp::run
