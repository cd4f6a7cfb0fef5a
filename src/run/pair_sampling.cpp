// SPDX-License-Identifier: Apache-2.0
// Warm-up and the timed rounds.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/clock.hpp"
#include "measure/statistics.hpp"
#include "run/assemble.hpp"
#include "run/pair_run.hpp"

namespace aisp::run {
namespace {

// Clocks need a moment of load to rise from idle.
constexpr double shortest_warmup_s = 0.1;
constexpr double partial_every_s = 1;
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
  stopwatch_ = make_stopwatch();
  timed_.clear();
  for (const Variant* variant : active()) timed_.push_back({variant, &result_of(variant->name), {}});
  const int rounds = std::max(request_.warmup, 1);
  const double start_s = base::monotonic_s();
  measure::Deadline deadline{stages_.left_s(), base::monotonic_s};
  const auto more = [&](int done) {
    if (done > 0 && deadline.comes()) return false;
    return done < rounds || (session_->on_gpu() && base::monotonic_s() - start_s < shortest_warmup_s);
  };
  try {
    for (int round = 0; more(round); ++round) {
      for (const Timed& timed : timed_) {
        const profile::Scope range{timed.result->name};
        stopwatch_->time(*timed.variant);
      }
      probe_ms_.push_back(stopwatch_->time_probe());
      reporter_.send(nlohmann::json{{"progress", {{"round", round + 1}, {"of", std::max(rounds, round + 1)}}}}.dump());
    }
  } catch (const measure::WaitsForGpu& variant) {
    if (start_ == Start::immediate) throw;
    result_.warnings.push_back(
        fmt::format("{} waits for the GPU or queues more than fits: timed from an immediate start", variant.what()));
    start_ = Start::immediate;
    probe_ms_.clear();
    return warm_up();
  }
  offset_ms_ = std::max(0.0, measure::median(probe_ms_) - probe_duration_ms_);
}

void PairRun::measure_rounds() {
  if (session_->on_gpu()) result_.start = start_ == Start::released ? "released" : "immediate";
  result_.host_dependent |= start_ == Start::immediate;
  measure::SamplingOptions options{.min_rounds = std::max(request_.iterations, 1),
                                   .fixed_rounds = request_.fixed_iterations,
                                   .relative_width = request_.confidence_width,
                                   .budget_s = request_.budget_s,
                                   .deadline_s = stages_.left_s(),
                                   .alternate = request_.alternate,
                                   .seed = request_.seed};
  if (request_.mode == TimingMode::do_bench) options.relative_width = 0;  // time-budgeted
  probe_ms_.clear();
  sample(options);
}

void PairRun::sample(measure::SamplingOptions options) {
  const Judge judge{std::string{pair_.judged_by}, offset_ms_};
  double last_partial_s = base::monotonic_s();
  measure::SamplingCallbacks callbacks;
  callbacks.time = [&](std::size_t index) {
    const profile::Scope range{timed_[index].result->name};
    const measure::Sample taken = stopwatch_->time(*timed_[index].variant);
    timed_[index].samples.push_back(taken);
    return taken;
  };
  callbacks.judged = judge;
  callbacks.now_s = base::monotonic_s;
  callbacks.after_round = [&](int round, int expected) {
    probe_ms_.push_back(stopwatch_->time_probe());
    if (session_->on_gpu()) result_.gpu_states.push_back(ground_->sample());
    reporter_.send(nlohmann::json{{"progress", {{"round", round + 1}, {"of", expected}}}}.dump());
    if (base::monotonic_s() - last_partial_s < partial_every_s) return;
    last_partial_s = base::monotonic_s();
    take_offset();
    send_partial();
  };
  measure::Sampling sampling = measure::sample_rounds(timed_.size(), options, callbacks);
  for (std::size_t i = 0; i < timed_.size(); ++i) timed_[i].samples = std::move(sampling.samples[i]);
  result_.stopped_because = sampling.stopped_because;
  if (sampling.rounds < options.min_rounds)
    result_.warnings.push_back(
        fmt::format("{} of {} rounds: more did not fit into the {:g} s of the measurement; "
                    "--timeout-multiplier gives it more",
                    sampling.rounds, options.min_rounds, request_.limits.measurement));
}

}  // namespace aisp::run
