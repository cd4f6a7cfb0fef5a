// SPDX-License-Identifier: Apache-2.0
#include "run/results/assemble.hpp"

#include <map>
#include <utility>

#include "measure/statistics/clock_step.hpp"
#include "measure/statistics/correlation.hpp"
#include "measure/statistics/statistics.hpp"

namespace aisp::run {
namespace {

evidence::Direction direction(Metrics::Better better) {
  return better == Metrics::Better::higher ? evidence::Direction::higher : evidence::Direction::lower;
}

}  // namespace

std::vector<double> raw_times_of(const std::vector<measure::Sample>& samples) {
  std::vector<double> times_ms;
  for (const measure::Sample& sample : samples) times_ms.push_back(sample.raw_ms);
  return times_ms;
}

evidence::Timing timing_of(const std::vector<measure::Sample>& samples, const measure::Correction& correction,
                           const std::vector<double>& percentiles) {
  evidence::Timing timing;
  timing.offset_ms = correction.offset();
  timing.offset_accuracy_ms = correction.accuracy;
  timing.clock_step_ms = correction.step;
  timing.raw_times_ms = raw_times_of(samples);
  for (const measure::Sample& sample : samples) {
    timing.host_times_ms.push_back(sample.host_ms);
    timing.rounds.push_back(sample.round);
  }
  timing.autocorrelation = measure::rank_autocorrelation(timing.raw_times_ms);
  std::vector<double> times_ms = measure::spread_over_step(timing.raw_times_ms, correction.step);
  for (double& time_ms : times_ms) time_ms = correction.corrected(time_ms, timing.offset_ms);
  timing.summary = measure::summarize(times_ms, percentiles);
  return timing;
}

double metric_value(const measure::MetricValue& value, const measure::Sample& sample, double offset_ms) {
  if (!value.is_rate) return value.value;
  // If the stopwatch has read its offset alone, there is nothing else to divide by.
  return value.value * 1e3 / (sample.raw_ms > offset_ms ? sample.raw_ms - offset_ms : sample.raw_ms);
}

std::vector<evidence::Metric> metrics_of(const std::vector<measure::Sample>& samples, double offset_ms,
                                         const std::vector<double>& percentiles) {
  std::map<std::string, evidence::Metric> metrics;
  for (const measure::Sample& sample : samples) {
    for (const auto& value : sample.metrics) {
      evidence::Metric& metric = metrics[value.name];
      metric.name = value.name;
      metric.unit = value.unit;
      metric.better = direction(value.better);
      metric.raw.push_back(metric_value(value, sample, offset_ms));
    }
    for (const auto& mark : sample.marks) {
      if (mark.name.empty()) continue;
      evidence::Metric& metric = metrics[mark.name];
      metric.name = mark.name;
      metric.unit = "us";
      metric.raw.push_back(mark.at_ms * 1e3);
    }
  }
  std::vector<evidence::Metric> result;
  for (auto& [name, metric] : metrics) {
    metric.summary = measure::summarize(metric.raw, percentiles);
    result.push_back(std::move(metric));
  }
  return result;
}

}  // namespace aisp::run
