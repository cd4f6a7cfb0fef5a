// SPDX-License-Identifier: Apache-2.0
// What the samples of a PairRun are worth: the stopwatch's offset, speedups, and the checks that can void them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
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
  for (Timed& timed : timed_) {
    evidence::VariantResult& variant = *timed.result;
    for (evidence::Metric& metric : metrics_of(timed.samples, offset_ms_, request_.percentiles))
      variant.metrics.push_back(std::move(metric));
    variant.inference =
        inference_of(timed.samples, offset_ms_, {request_.ttft_target_ms, request_.tpot_target_ms}, request_.percentiles);
    // A floor is of the whole run's time: beside a speedup of another figure it would be read as that figure's.
    if (judge.metric.empty())
      variant.floor = ground_->floor(session_->workload().variant_cost(variant.name), session_->bytes_written(*timed.variant),
                                     variant.timing->summary.median, result_.gpu_states);
  }
  Claims claims = claim_speedups(timed_, judge, correction(), result_.lesson);
  std::ranges::move(claims.warnings, std::back_inserter(result_.warnings));
  if (!claims.best.empty()) result_.best = std::move(claims.best);
  warn_of_drift();
  check_floors();
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
