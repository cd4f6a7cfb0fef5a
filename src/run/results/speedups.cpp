// SPDX-License-Identifier: Apache-2.0
#include "run/results/speedups.hpp"

#include <fmt/format.h>
#include <aisp/compiled.hpp>

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <utility>

#include "base/text.hpp"
#include "measure/statistics/statistics.hpp"

namespace aisp::run {
namespace {

double metric_of(const measure::Sample& sample, const std::string& metric) {
  for (const auto& value : sample.metrics)
    if (value.name == metric) return metric_value(value, sample, 0);
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
    if (value.name == judge.metric) return value.better == Metrics::Better::higher;
  return false;
}

std::string too_short_text(const evidence::VariantResult* baseline, const evidence::VariantResult& variant,
                           const measure::Correction& correction) {
  const double least_ms = measure::measurable_times * correction.accuracy;
  const bool is_baseline = baseline->timing->summary.median < least_ms;
  return fmt::format("no verdict for {}: {} takes less than {}, and the stopwatch is accurate to {}", variant.name,
                     is_baseline ? baseline->name : variant.name, base::display_ms(least_ms),
                     base::display_ms(correction.accuracy));
}

void tell_gain(const std::vector<Timed>& all, const Timed& timed, const Judge& judge, const measure::Correction& correction) {
  if (timed.result->role != evidence::VariantRole::optimized) return;
  const std::string_view named = timed.variant->gains_over;
  const Timed* over = named.empty() ? &all.front() : nullptr;
  for (const Timed& earlier : all) {
    if (&earlier == &timed) break;
    // Steps that this machine cannot take are left out.
    if (named.empty() || earlier.result->name == named) over = &earlier;
  }
  if (over == nullptr) return;
  timed.result->gain = {over->result->name,
                        speedup_of(speedup_interval(over->samples, timed.samples, judge, {.correction = correction}))};
}

void tell_share(const std::vector<Timed>& all, const Timed& timed, const Judge& judge, const measure::Correction& correction) {
  const evidence::VariantResult& own = *timed.result;
  if (own.role != evidence::VariantRole::baseline && own.role != evidence::VariantRole::optimized) return;
  const Timed* fastest = nullptr;
  for (const Timed& other : all) {
    if (other.result->role != evidence::VariantRole::library || !other.result->speedup) continue;
    // A variant that rounds more computes a different result.
    if (other.result->changes_precision && !own.changes_precision) continue;
    if (fastest == nullptr || other.result->speedup->value > fastest->result->speedup->value) fastest = &other;
  }
  if (fastest == nullptr) return;
  const measure::Interval share = speedup_interval(fastest->samples, timed.samples, judge, {.correction = correction});
  timed.result->library_share = {fastest->result->name, 100 * share.value, 100 * share.low, 100 * share.high};
}

// Reports after how many calls a variant has gained back the run-time compilation of its kernels.
void tell_compile_time(const std::vector<Timed>& all, const Timed& timed) {
  std::vector<evidence::Metric>& metrics = timed.result->metrics;
  const auto compile = std::ranges::find(metrics, std::string{compile_time}, &evidence::Metric::name);
  const evidence::VariantResult& baseline = *all.front().result;
  if (compile == metrics.end() || !timed.result->timing || !baseline.timing) return;
  compile->raw.resize(1);  // one reading, which every sample repeats, is no distribution
  const std::optional<double> calls =
      calls_to_repay(compile->summary.median, baseline.timing->summary.median, timed.result->timing->summary.median);
  if (!calls) return;
  evidence::Metric metric{
      .name = "calls_to_repay_compile", .unit = "calls", .better = evidence::Direction::lower, .raw = {*calls}};
  metric.summary = measure::summarize(metric.raw);
  metrics.push_back(std::move(metric));
}

}  // namespace

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

std::optional<measure::Interval> loss_to(const Timed& member, const Timed& best, const Judge& judge,
                                         const measure::Correction& correction) {
  const measure::Interval speed = speedup_interval(member.samples, best.samples, judge, {.correction = correction});
  if (measure::verdict(speed) != evidence::Verdict::slower || speed.high >= 1 - measure::smallest_difference) return std::nullopt;
  return speed;
}

Claims claim_speedups(const std::vector<Timed>& timed, const Judge& judge, const measure::Correction& correction,
                      std::string_view lesson) {
  Claims claims;
  const Timed* best = nullptr;
  measure::Interval best_interval;
  int claimants = 0;
  for (const Timed& each : timed) {
    evidence::VariantResult& variant = *each.result;
    if (variant.role == evidence::VariantRole::baseline || variant.status != evidence::Status::passed) continue;
    const measure::Interval interval = speedup_interval(timed.front().samples, each.samples, judge, {.correction = correction});
    variant.speedup = speedup_of(interval);
    if (!interval.measurable) claims.warnings.push_back(too_short_text(timed.front().result, variant, correction));
    if (variant.role != evidence::VariantRole::optimized) continue;
    ++claimants;
    // A variant too short to be measured is not the best, however large its ratio looks.
    const auto rank = [](const measure::Interval& of) { return std::pair{of.measurable, of.value}; };
    if (best != nullptr && rank(interval) <= rank(best_interval)) continue;
    best = &each;
    best_interval = interval;
  }
  if (best != nullptr) claims.best = best->result->name;
  // The lesson was named before anything was measured; any other best was chosen for its number.
  if (claimants > 1 && claims.best != lesson)
    best->result->speedup = speedup_of(
        speedup_interval(timed.front().samples, best->samples, judge, {.claims = claimants, .correction = correction}));
  for (const Timed& each : timed) {
    tell_gain(timed, each, judge, correction);
    tell_share(timed, each, judge, correction);
    tell_compile_time(timed, each);
  }
  return claims;
}

}  // namespace aisp::run
