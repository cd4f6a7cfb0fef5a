// SPDX-License-Identifier: Apache-2.0
// What the samples of a PairRun are worth: the stopwatch's offset, speedups, and the checks that can void them.
#include <fmt/format.h>

#include "measure/statistics.hpp"
#include "run/assemble.hpp"
#include "run/inference.hpp"
#include "run/pair_run.hpp"

namespace aisp::run {
void PairRun::take_offset() {
  offset_ms_ = std::max(0.0, measure::median(probe_ms_) - probe_duration_ms_);
  for (Timed& timed : timed_)
    if (!timed.samples.empty()) timed.result->timing = timing_of(timed.samples, offset_ms_, request_.percentiles);
}

void PairRun::judge() {
  const Judge judge{std::string{pair_.judged_by}, offset_ms_};
  const evidence::VariantResult* best = nullptr;
  for (Timed& timed : timed_) {
    evidence::VariantResult& variant = *timed.result;
    for (evidence::Metric& metric : metrics_of(timed.samples, request_.percentiles)) variant.metrics.push_back(std::move(metric));
    variant.inference =
        inference_of(timed.samples, offset_ms_, {request_.ttft_target_ms, request_.tpot_target_ms}, request_.percentiles);
    variant.floor = ground_->floor(session_->workload().variant_cost(variant.name), session_->bytes_written(*timed.variant),
                                   variant.timing->summary.median, result_.gpu_states);
    if (variant.role == evidence::VariantRole::baseline) continue;
    variant.speedup = speedup_of(timed_.front().samples, timed.samples, judge, request_.seed);
    if (variant.role != evidence::VariantRole::optimized) continue;
    if (best == nullptr || variant.speedup->value > best->speedup->value) best = &variant;
  }
  if (best != nullptr) result_.best = best->name;
  check_floors();
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
