// SPDX-License-Identifier: Apache-2.0
// What the samples of a PairRun are worth: the stopwatch's offset, speedups, and the checks that can void them.
#include <fmt/format.h>

#include "measure/statistics.hpp"
#include "profile/activity.hpp"
#include "run/assemble.hpp"
#include "run/auditor.hpp"
#include "run/inference.hpp"
#include "run/memory_account.hpp"
#include "run/pair_run.hpp"

namespace aisp::run {
namespace {

// Late work shorter than this is the host's own delay in asking.
constexpr double late_work_ms = 0.25;

}  // namespace

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
  check_late_work();
  check_floors();
}

void PairRun::check_late_work() {
  for (const Timed& timed : timed_) {
    std::vector<double> late_ms;
    for (const measure::Sample& sample : timed.samples) late_ms.push_back(sample.late_ms);
    const double median_ms = measure::median(late_ms);
    if (median_ms > late_work_ms && median_ms > 0.02 * timed.result->timing->summary.median)
      problem(timed.result->name, "late_work",
              fmt::format("the GPU worked on for {:.3g} ms after the end of the sample", median_ms),
              "join other streams to launch.stream with events");
  }
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

void PairRun::audit() {
  if (!session_->on_gpu()) return;
  if (const auto& reason = profile::ActivityRecorder::unavailable()) {
    result_.lost.push_back("no CUPTI, so hidden work is sought by its effects only: " + *reason);
    return;
  }
  Auditor auditor{*session_};
  if (probe_duration_ms_ > 0) probe_duration_ms_ = auditor.probe_ms(*stopwatch_);
  for (const Timed& timed : timed_) {
    const profile::Scope range{timed.result->name};
    const AuditedRun run = auditor.run(*timed.variant);
    timed.result->gpu_busy_ms = static_cast<double>(run.audit.busy_ns) * 1e-6;
    add_own_allocations(timed.result->memory, run.most_allocated_bytes);
    if (!run.audit.findings.empty()) {
      const std::size_t more = run.audit.findings.size() - 1;
      problem(timed.result->name, "hidden_work",
              run.audit.findings.front() + (more > 0 ? fmt::format(" (and {} more findings)", more) : ""),
              "join other streams to launch.stream with events");
    }
    if (run.host_functions > 0 && !timed.variant->host_callbacks)
      problem(timed.result->name, "hidden_work", fmt::format("{} host functions were queued", run.host_functions),
              "set .host_callbacks where the CPU's part is the subject");
  }
}

}  // namespace aisp::run
