// SPDX-License-Identifier: Apache-2.0
// From samples to results: offsets taken out, summaries, speedups, metrics, energy and latencies of tokens.
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

// The value that decides between variants, one a sample: the time, or a metric, which no stopwatch read.
struct Judge {
  std::string metric;  // empty: the time
  std::uint64_t seed = 0;
  bool on_host = false;
};
// Baseline against variant, so that above 1 is better in either direction.
measure::Interval speedup_interval(const std::vector<measure::Sample>& baseline, const std::vector<measure::Sample>& variant,
                                   const Judge& judge, const measure::RatioOptions& options);
evidence::Speedup speedup_of(const measure::Interval& interval);
// Drops speedup, gain and library share of a variant that failed, or whose pair did.
void clear_claims(evidence::VariantResult& variant);
// How many calls it takes until what each of them saves is worth the time of compiling; nothing where none is saved.
std::optional<double> calls_to_repay(double compile_ms, double baseline_ms, double variant_ms);
std::vector<evidence::Metric> metrics_of(const std::vector<measure::Sample>& samples, double offset_ms,
                                         const std::vector<double>& percentiles);

// Nothing without windows.
std::optional<evidence::Energy> energy_of(const std::vector<measure::EnergyWindow>& windows, const evidence::DeclaredCost& cost,
                                          const std::vector<double>& steps_s);
// Median of the rounds' own ratios with what was seen of them, so that what both share in a round (temperature, clock) drops out.
evidence::EnergyRatio energy_ratio(const std::vector<measure::EnergyWindow>& baseline,
                                   const std::vector<measure::EnergyWindow>& variant);

struct LatencyTargets {  // 0: none
  double ttft_ms = 0, tpot_ms = 0;
  bool any() const { return ttft_ms > 0 || tpot_ms > 0; }
};

// Absent when the variant marks no tokens. `offset_ms`: the stopwatch's own, in the time of each sample.
std::optional<evidence::InferenceTiming> inference_of(const std::vector<measure::Sample>& samples, double offset_ms,
                                                      const LatencyTargets& targets, const std::vector<double>& percentiles);

}  // namespace aisp::run
