// SPDX-License-Identifier: Apache-2.0
// Turns samples into results: offsets subtracted, summaries, speedups, metrics, energy and token latencies.
#pragma once
#include <aisp/workload.hpp>

#include <optional>
#include <vector>

#include "evidence/result.hpp"
#include "measure/energy.hpp"
#include "measure/sample.hpp"
#include "measure/statistics/ratio.hpp"

namespace aisp::run {

evidence::DeclaredCost declared(const Cost& cost);

std::vector<double> raw_times_of(const std::vector<measure::Sample>& samples);
evidence::Timing timing_of(const std::vector<measure::Sample>& samples, const measure::Correction& correction,
                           const std::vector<double>& percentiles);

// The value that decides between variants, one a sample: the time, or a metric, which has no stopwatch offset.
struct Judge {
  std::string metric;  // empty: the time
  std::uint64_t seed = 0;
  bool on_host = false;
};
// Returns baseline against variant, so that above 1 is better, whichever direction the metric has.
measure::Interval speedup_interval(const std::vector<measure::Sample>& baseline, const std::vector<measure::Sample>& variant,
                                   const Judge& judge, const measure::RatioOptions& options);
evidence::Speedup speedup_of(const measure::Interval& interval);
// Drops speedup, gain and library share of a variant that failed, or whose pair did.
void clear_claims(evidence::VariantResult& variant);
// Returns the number of calls after which their savings repay the compile time; nothing if a call saves none.
std::optional<double> calls_to_repay(double compile_ms, double baseline_ms, double variant_ms);
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
