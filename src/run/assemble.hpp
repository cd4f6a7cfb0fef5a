// SPDX-License-Identifier: Apache-2.0
// From samples to results: offsets taken out, summaries, speedups and metrics.
#pragma once
#include <aisp/workload.hpp>

#include <vector>

#include "evidence/result.hpp"
#include "measure/sample.hpp"

namespace aisp::run {

evidence::DeclaredCost declared(const Cost& cost);

// The value that decides between variants, one a sample.
struct Judge {
  std::string metric;    // empty: the time
  double offset_ms = 0;  // of the stopwatch
  double operator()(const measure::Sample& sample) const;
  evidence::Direction better(const std::vector<measure::Sample>& samples) const;
};

evidence::Timing timing_of(const std::vector<measure::Sample>& samples, double offset_ms, const std::vector<double>& percentiles);
// Baseline against variant, so that above 1 is better in either direction.
evidence::Speedup speedup_of(const std::vector<measure::Sample>& baseline, const std::vector<measure::Sample>& variant,
                             const Judge& judge, std::uint64_t seed);
std::vector<evidence::Metric> metrics_of(const std::vector<measure::Sample>& samples, const std::vector<double>& percentiles);

}  // namespace aisp::run
