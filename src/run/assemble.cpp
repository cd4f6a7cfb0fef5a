// SPDX-License-Identifier: Apache-2.0
#include "run/assemble.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include "machine/ceilings.hpp"
#include "measure/statistics.hpp"

namespace aisp::run {
namespace {

// Kernels shorter than the stopwatch's own jitter would come out at or below zero.
constexpr double shortest_ms = 1e-5;

double corrected(const measure::Sample& sample, double offset_ms) { return std::max(sample.raw_ms - offset_ms, shortest_ms); }

evidence::Direction direction(Metrics::Better better) {
  return better == Metrics::Better::higher ? evidence::Direction::higher : evidence::Direction::lower;
}

std::vector<double> judged(const std::vector<measure::Sample>& samples, const Judge& judge) {
  std::vector<double> values;
  for (const measure::Sample& sample : samples) values.push_back(judge(sample));
  return values;
}

}  // namespace

evidence::DeclaredCost declared(const Cost& cost) {
  evidence::DeclaredCost result{.flops = cost.flops, .bytes = cost.bytes};
  if (cost.flops > 0) result.math = machine::name_of(cost.math);
  if (cost.bytes > 0) {
    result.bytes_of = "device memory";
    return result;
  }
  const std::array<std::pair<double, std::string_view>, 4> kinds{{{cost.host_bytes, "host memory"},
                                                                  {cost.host_to_device, "host to device"},
                                                                  {cost.device_to_host, "device to host"},
                                                                  {cost.peer_bytes, "peer"}}};
  for (const auto& [bytes, kind] : kinds) {
    if (bytes <= 0) continue;
    result.bytes += bytes;
    result.bytes_of = result.bytes_of.empty() ? kind : "several";
  }
  return result;
}

double Judge::operator()(const measure::Sample& sample) const {
  if (metric.empty()) return corrected(sample, offset_ms);
  for (const auto& value : sample.metrics)
    if (value.name == metric) return value.value;
  for (const auto& mark : sample.marks)
    if (mark.name == metric) return mark.at_ms * 1e3;
  throw std::runtime_error{"the pair is judged by the metric '" + metric + "', which a variant did not report"};
}

evidence::Direction Judge::better(const std::vector<measure::Sample>& samples) const {
  if (metric.empty() || samples.empty()) return evidence::Direction::lower;
  for (const auto& value : samples.front().metrics)
    if (value.name == metric) return direction(value.better);
  return evidence::Direction::lower;
}

evidence::Timing timing_of(const std::vector<measure::Sample>& samples, double offset_ms,
                           const std::vector<double>& percentiles) {
  evidence::Timing timing;
  timing.offset_ms = offset_ms;
  std::vector<double> times_ms;
  for (const measure::Sample& sample : samples) {
    times_ms.push_back(corrected(sample, offset_ms));
    timing.raw_times_ms.push_back(sample.raw_ms);
    timing.host_times_ms.push_back(sample.host_ms);
    timing.rounds.push_back(sample.round);
  }
  timing.summary = measure::summarize(times_ms, percentiles);
  return timing;
}

evidence::Speedup speedup_of(const std::vector<measure::Sample>& baseline, const std::vector<measure::Sample>& variant,
                             const Judge& judge, std::uint64_t seed) {
  const std::vector<double> before = judged(baseline, judge);
  const std::vector<double> after = judged(variant, judge);
  const bool higher = judge.better(baseline) == evidence::Direction::higher;
  const measure::Interval ratio =
      higher ? measure::ratio_of_medians(after, before, seed) : measure::ratio_of_medians(before, after, seed);
  return {ratio.value, ratio.low, ratio.high, measure::verdict(ratio)};
}

std::vector<evidence::Metric> metrics_of(const std::vector<measure::Sample>& samples, const std::vector<double>& percentiles) {
  std::map<std::string, evidence::Metric> metrics;
  for (const measure::Sample& sample : samples) {
    for (const auto& value : sample.metrics) {
      evidence::Metric& metric = metrics[value.name];
      metric.name = value.name;
      metric.unit = value.unit;
      metric.better = direction(value.better);
      metric.raw.push_back(value.value);
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
