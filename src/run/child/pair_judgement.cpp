// SPDX-License-Identifier: Apache-2.0
// What the samples of a PairRun are worth: the stopwatch's offset, speedups, and the checks that can void them.
#include <fmt/format.h>
#include <aisp/compiled.hpp>

#include <algorithm>
#include <cmath>
#include <span>

#include "base/text.hpp"
#include "evidence/sm_clock.hpp"
#include "measure/statistics/clock_step.hpp"
#include "measure/statistics/statistics.hpp"
#include "run/child/pair_run.hpp"
#include "run/results/assemble.hpp"
#include "run/results/inference.hpp"

namespace aisp::run {
namespace {

// Events less their offset against CUPTI's durations (tests/measure/agreement_gpu_test.cu).
constexpr double events_accuracy_ms = 2e-4;
// The same without CUPTI: the least kernel takes between 0.8 and 1.8 us on any GPU.
constexpr double assumed_accuracy_ms = 5e-4;
constexpr double telling_autocorrelation = 0.2;

// Above it, and not by chance: of n independent samples it varies by 1 / sqrt(n).
bool drifts(const evidence::Timing& timing) {
  const double chance = 3 / std::sqrt(static_cast<double>(timing.summary.count));
  return timing.autocorrelation && *timing.autocorrelation > std::max(telling_autocorrelation, chance);
}

// A state is read behind each round; without alternation the rounds of one variant come after those of the one before.
std::span<const evidence::GpuState> states_of(std::span<const evidence::GpuState> states, std::size_t variant,
                                              std::size_t variants, bool alternate) {
  if (alternate) return states;
  const std::size_t rounds = states.size() / variants;
  return states.subspan(variant * rounds, rounds);
}

std::string too_short_text(const evidence::VariantResult* baseline, const evidence::VariantResult& variant,
                           const measure::Correction& correction) {
  const double least_ms = measure::measurable_times * correction.accuracy;
  const bool is_baseline = baseline->timing->summary.median < least_ms;
  return fmt::format("no verdict for {}: {} takes less than {}, and the stopwatch is accurate to {}", variant.name,
                     is_baseline ? baseline->name : variant.name, base::display_ms(least_ms),
                     base::display_ms(correction.accuracy));
}

}  // namespace

measure::Correction PairRun::correction() const {
  std::vector<std::vector<double>> readings{probe_ms_};
  for (const Timed& timed : timed_) readings.push_back(raw_times_of(timed.samples));
  measure::Correction correction{.probe = probe_ms_, .probe_work = probe_duration_ms_};
  correction.step = measure::clock_step_ms(readings);
  if (pair_.device == Device::host) correction.accuracy = correction.offset();
  else if (probe_duration_ms_ > 0) correction.accuracy = probe_measured_ ? events_accuracy_ms : assumed_accuracy_ms;
  return correction;
}

void PairRun::take_offset() {
  const measure::Correction known = correction();
  offset_ms_ = known.offset();
  for (std::size_t i = 0; i < timed_.size(); ++i) {
    if (timed_[i].samples.empty()) continue;
    evidence::Timing& timing = timed_[i].result->timing.emplace(timing_of(timed_[i].samples, known, request_.percentiles));
    timing.sm_clock_mhz = evidence::median_sm_clock_mhz(states_of(result_.gpu_states, i, timed_.size(), request_.alternate));
  }
}

void PairRun::judge() {
  const Judge judge{std::string{pair_.judged_by}, request_.seed};
  const measure::Correction known = correction();
  const Timed* best = nullptr;
  measure::Interval best_interval;
  int claims = 0;
  for (Timed& timed : timed_) {
    evidence::VariantResult& variant = *timed.result;
    for (evidence::Metric& metric : metrics_of(timed.samples, request_.percentiles)) variant.metrics.push_back(std::move(metric));
    variant.inference =
        inference_of(timed.samples, offset_ms_, {request_.ttft_target_ms, request_.tpot_target_ms}, request_.percentiles);
    // A floor is of the whole run's time: beside a speedup of another figure it would be read as that figure's.
    if (judge.metric.empty())
      variant.floor = ground_->floor(session_->workload().variant_cost(variant.name), session_->bytes_written(*timed.variant),
                                     variant.timing->summary.median, result_.gpu_states);
    if (variant.role == evidence::VariantRole::baseline || variant.status != evidence::Status::passed) continue;
    const measure::Interval interval = speedup_interval(timed_.front().samples, timed.samples, judge, {.correction = known});
    variant.speedup = speedup_of(interval);
    if (!interval.measurable) result_.warnings.push_back(too_short_text(timed_.front().result, variant, known));
    if (variant.role != evidence::VariantRole::optimized) continue;
    ++claims;
    // What is too short to be measured is not the best, however large its ratio looks.
    const auto rank = [](const measure::Interval& of) { return std::pair{of.measurable, of.value}; };
    if (best != nullptr && rank(interval) <= rank(best_interval)) continue;
    best = &timed;
    best_interval = interval;
  }
  if (best != nullptr) result_.best = best->result->name;
  // The lesson was named before anything was measured; any other best was chosen for its number.
  if (claims > 1 && result_.best != result_.lesson)
    best->result->speedup =
        speedup_of(speedup_interval(timed_.front().samples, best->samples, judge, {.claims = claims, .correction = known}));
  for (const Timed& timed : timed_) {
    tell_gain(timed, judge);
    tell_share(timed, judge);
    tell_compile_time(timed);
  }
  warn_of_drift();
  check_floors();
}

void PairRun::tell_gain(const Timed& timed, const Judge& judge) {
  if (timed.result->role != evidence::VariantRole::optimized) return;
  const std::string_view named = timed.variant->gains_over;
  const Timed* over = named.empty() ? &timed_.front() : nullptr;
  for (const Timed& earlier : timed_) {
    if (&earlier == &timed) break;
    // Steps that this machine cannot take are left out.
    if (named.empty() || earlier.result->name == named) over = &earlier;
  }
  if (over == nullptr) return;
  timed.result->gain = {over->result->name,
                        speedup_of(speedup_interval(over->samples, timed.samples, judge, {.correction = correction()}))};
}

// After how many calls a variant whose kernels are compiled at run time has gained that time back.
void PairRun::tell_compile_time(const Timed& timed) {
  std::vector<evidence::Metric>& metrics = timed.result->metrics;
  const auto compile = std::ranges::find(metrics, std::string{compile_time}, &evidence::Metric::name);
  const evidence::VariantResult& baseline = *timed_.front().result;
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

void PairRun::tell_share(const Timed& timed, const Judge& judge) {
  const evidence::VariantResult& own = *timed.result;
  if (own.role != evidence::VariantRole::baseline && own.role != evidence::VariantRole::optimized) return;
  const Timed* fastest = nullptr;
  for (const Timed& other : timed_) {
    if (other.result->role != evidence::VariantRole::library || !other.result->speedup) continue;
    // One that rounds more is another result.
    if (other.result->changes_precision && !own.changes_precision) continue;
    if (fastest == nullptr || other.result->speedup->value > fastest->result->speedup->value) fastest = &other;
  }
  if (fastest == nullptr) return;
  const measure::Interval share = speedup_interval(fastest->samples, timed.samples, judge, {.correction = correction()});
  timed.result->library_share = {fastest->result->name, 100 * share.value, 100 * share.low, 100 * share.high};
}

void PairRun::warn_of_drift() {
  std::vector<std::string> drifting;
  for (const Timed& timed : timed_) {
    const evidence::Timing& timing = *timed.result->timing;
    if (drifts(timing)) drifting.push_back(fmt::format("{} ({:.2f})", timed.result->name, *timing.autocorrelation));
  }
  if (drifting.empty()) return;
  result_.warnings.push_back(fmt::format(
      "samples resemble those just before them (autocorrelation above {}): {}; something changed slowly while they were "
      "taken, like the clock or other programs, and intervals are as wide as that asks for",
      telling_autocorrelation, base::join(drifting, ", ")));
}

void PairRun::check_floors() {
  for (const Timed& timed : timed_) {
    const Cost cost = session_->workload().variant_cost(timed.variant->name);
    const auto arithmetic = ground_->impossible(cost, timed.result->timing->summary.median, pair_.cache);
    if (arithmetic) problem(timed.result->name, "possible_time", *arithmetic, "the declared cost is too high or work is missing");
    else check_ceiling(timed, cost);
  }
}

// On the host nothing else knows what memory can do; a GPU has theoretical peaks, so its ceilings only make one wonder.
void PairRun::check_ceiling(const Timed& timed, const Cost& cost) {
  const auto above = ground_->above_ceiling(cost, session_->bytes_written(*timed.variant), timed.result->timing->summary.median);
  if (!above) return;
  if (session_->on_gpu())
    result_.warnings.push_back(
        fmt::format("{}: its time is {}; its declared cost is too high, or a ceiling too low", timed.result->name, *above));
  else
    problem(
        timed.result->name, "possible_time", fmt::format("its time is {}", *above),
        "the declared cost is too high or work is missing; if the machine was busy when its ceilings were measured: aisp peak "
        "--refresh");
}

}  // namespace aisp::run
