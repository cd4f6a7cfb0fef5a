// SPDX-License-Identifier: Apache-2.0
#include "run/results/assemble.hpp"

#include <array>
#include <cmath>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include "machine/ceilings.hpp"
#include "measure/statistics/clock_step.hpp"
#include "measure/statistics/correlation.hpp"
#include "measure/statistics/statistics.hpp"

namespace aisp::run {
namespace {

evidence::Direction direction(Metrics::Better better) {
  return better == Metrics::Better::higher ? evidence::Direction::higher : evidence::Direction::lower;
}

double value_of(const measure::MetricValue& value, const measure::Sample& sample, double offset_ms) {
  if (!value.is_rate) return value.value;
  // If the stopwatch has read its offset alone, there is nothing else to divide by.
  return value.value * 1e3 / (sample.raw_ms > offset_ms ? sample.raw_ms - offset_ms : sample.raw_ms);
}

double metric_of(const measure::Sample& sample, const std::string& metric) {
  for (const auto& value : sample.metrics)
    if (value.name == metric) return value_of(value, sample, 0);
  for (const auto& mark : sample.marks)
    if (mark.name == metric) return mark.at_ms * 1e3;
  throw std::runtime_error{"the pair is judged by the metric '" + metric + "', which a variant did not report"};
}

std::vector<double> judged(const std::vector<measure::Sample>& samples, const Judge& judge) {
  if (judge.metric.empty()) return raw_times_of(samples);
  std::vector<double> values;
  for (const measure::Sample& sample : samples) values.push_back(metric_of(sample, judge.metric));
  return values;
}

bool higher_is_better(const std::vector<measure::Sample>& samples, const Judge& judge) {
  if (judge.metric.empty() || samples.empty()) return false;
  for (const auto& value : samples.front().metrics)
    if (value.name == judge.metric) return direction(value.better) == evidence::Direction::higher;
  return false;
}

}  // namespace

evidence::DeclaredCost declared(const Cost& declared_cost) {
  using evidence::ByteKind;
  const Cost cost = machine::whole(declared_cost);
  evidence::DeclaredCost result{.flops = 0, .bytes = cost.bytes, .math = {}};
  for (const MoreMath& each : machine::math_of(cost)) {
    result.math = result.flops > 0 ? "several" : machine::name_of(each.math);
    result.flops += each.flops;
  }
  if (cost.bytes > 0) {
    result.bytes_of = ByteKind::device_memory;
    return result;
  }
  const std::array<std::pair<double, ByteKind>, 4> kinds{{{cost.host_bytes, ByteKind::host_memory},
                                                          {cost.host_to_device, ByteKind::host_to_device},
                                                          {cost.device_to_host, ByteKind::device_to_host},
                                                          {cost.peer_bytes, ByteKind::peer}}};
  for (const auto& [bytes, kind] : kinds) {
    if (bytes <= 0) continue;
    result.bytes += bytes;
    result.bytes_of = result.bytes_of == ByteKind::none ? kind : ByteKind::several;
  }
  return result;
}

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

measure::Interval speedup_interval(const std::vector<measure::Sample>& baseline, const std::vector<measure::Sample>& variant,
                                   const Judge& judge, const measure::RatioOptions& options) {
  const std::vector<double> before = judged(baseline, judge);
  const std::vector<double> after = judged(variant, judge);
  measure::RatioOptions used = options;
  if (!judge.metric.empty()) used.correction = {};
  measure::Interval interval = higher_is_better(baseline, judge) ? measure::ratio_of_medians(after, before, judge.seed, used)
                                                                 : measure::ratio_of_medians(before, after, judge.seed, used);
  const bool short_host_work = judge.on_host && judge.metric.empty() &&
                               std::min(measure::median(before), measure::median(after)) < measure::placed_below_ms;
  if (short_host_work) interval.placement = measure::placement_of_short_host_work;
  return interval;
}

evidence::Speedup speedup_of(const measure::Interval& interval) {
  return {interval.value, interval.low, interval.high, measure::verdict(interval), interval.effective_rounds};
}

void clear_claims(evidence::VariantResult& variant) {
  variant.speedup.reset();
  variant.gain.reset();
  variant.library_share.reset();
}

std::optional<double> calls_to_repay(double compile_ms, double baseline_ms, double variant_ms) {
  const double saved_ms = baseline_ms - variant_ms;
  if (!(saved_ms > 0)) return std::nullopt;
  return std::ceil(compile_ms / saved_ms);
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
      metric.raw.push_back(value_of(value, sample, offset_ms));
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
