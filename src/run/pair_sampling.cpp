// SPDX-License-Identifier: Apache-2.0
// Warm-up and the timed rounds.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/clock.hpp"
#include "run/assemble.hpp"
#include "run/pair_run.hpp"

namespace aisp::run {
namespace {

// Clocks need a moment of load to rise from idle.
constexpr double shortest_warmup_s = 0.1;
constexpr double partial_every_s = 1;
// Reading it must not fill short rounds.
constexpr double state_every_s = 0.01;
constexpr int quick_resamples = 200;  // enough to decide whether to go on; the reported interval uses more
// The probe kernel's own duration on an H200; used where CUPTI is missing.
constexpr double assumed_probe_ms = 0.0013;

}  // namespace

std::unique_ptr<measure::Stopwatch> PairRun::make_stopwatch() {
  if (pair_.device == Device::host) return measure::make_host_stopwatch(*session_);
  if (request_.mode == TimingMode::timer) return measure::make_timer_stopwatch(*session_);
  const measure::StopwatchOptions options{start_, pair_.cache};
  if (request_.mode == TimingMode::kernel) return measure::make_kernel_stopwatch(*session_, options);
  return measure::make_event_stopwatch(*session_, options);
}

void PairRun::warm_up() {
  // Until the audit measures it.
  const bool by_events = session_->on_gpu() && (request_.mode == TimingMode::events || request_.mode == TimingMode::do_bench);
  probe_duration_ms_ = by_events ? assumed_probe_ms : 0;
  probe_measured_ = false;
  stopwatch_ = make_stopwatch();
  timed_.clear();
  for (const Variant* variant : active()) timed_.push_back({variant, &result_of(variant->name), {}});
  const int rounds = std::max(request_.warmup, 1);
  const double start_s = base::monotonic_s();
  try {
    for (int round = 0; round < rounds || (session_->on_gpu() && base::monotonic_s() - start_s < shortest_warmup_s); ++round) {
      for (const Timed& timed : timed_) {
        const profile::Scope range{timed.result->name};
        stopwatch_->time(*timed.variant);
      }
      probe_ms_.push_back(stopwatch_->time_probe());
    }
  } catch (const measure::WaitsForGpu& variant) {
    if (start_ == Start::immediate) throw;
    result_.warnings.push_back(
        fmt::format("{} waits for the GPU or queues more than fits: timed from an immediate start", variant.what()));
    start_ = Start::immediate;
    probe_ms_.clear();
    return warm_up();
  }
  offset_ms_ = correction().offset();
}

void PairRun::measure_rounds() {
  if (session_->on_gpu()) result_.start = start_ == Start::released ? "released" : "immediate";
  measure::SamplingOptions options{.min_rounds = std::max(request_.iterations, 1),
                                   .fixed_rounds = request_.fixed_iterations,
                                   .relative_width = request_.confidence_width,
                                   .budget_s = request_.budget_s,
                                   .alternate = request_.alternate,
                                   .seed = request_.seed};
  if (request_.mode == TimingMode::do_bench) options.relative_width = 0;  // time-budgeted
  probe_ms_.clear();
  sample(options);
}

void PairRun::sample(measure::SamplingOptions options) {
  const Judge judge{std::string{pair_.judged_by}, request_.seed};
  const double start_s = base::monotonic_s();
  double last_partial_s = start_s, last_state_s = 0;
  measure::SamplingCallbacks callbacks;
  callbacks.time = [&](std::size_t index) {
    const profile::Scope range{timed_[index].result->name};
    const measure::Sample taken = stopwatch_->time(*timed_[index].variant);
    timed_[index].samples.push_back(taken);
    return taken;
  };
  callbacks.speedup = [&](const auto& baseline, const auto& variant) {
    measure::Correction known = correction();
    known.accuracy = 0;  // more rounds do not improve it
    return speedup_interval(baseline, variant, judge, {.resamples = quick_resamples, .correction = known});
  };
  callbacks.now_s = base::monotonic_s;
  callbacks.after_round = [&](int round, int expected) {
    probe_ms_.push_back(stopwatch_->time_probe());
    if (session_->on_gpu()) {
      const bool fresh = round > 0 && base::monotonic_s() - last_state_s < state_every_s;
      result_.gpu_states.push_back(fresh ? evidence::GpuState{result_.gpu_states.back()} : ground_->sample());
      if (!fresh) last_state_s = base::monotonic_s();
    }
    reporter_.send(nlohmann::json{{"progress", {{"round", round + 1}, {"of", expected}}}}.dump());
    if (base::monotonic_s() - last_partial_s < partial_every_s) return;
    last_partial_s = base::monotonic_s();
    take_offset();
    send_partial();
  };
  measure::Sampling sampling = measure::sample_rounds(timed_.size(), options, callbacks);
  result_.sampling_s = base::monotonic_s() - start_s;
  double inside_ms = 0;
  for (std::size_t i = 0; i < timed_.size(); ++i) {
    timed_[i].samples = std::move(sampling.samples[i]);
    for (const measure::Sample& taken : timed_[i].samples) inside_ms += taken.raw_ms;
  }
  // The timer's samples are means of a block.
  if (result_.sampling_s > 0 && request_.mode != TimingMode::timer)
    result_.duty_percent = std::min(100.0, inside_ms * 0.1 / result_.sampling_s);
  result_.stopped_because = sampling.stopped_because;
}

}  // namespace aisp::run
