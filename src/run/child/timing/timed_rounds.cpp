// SPDX-License-Identifier: Apache-2.0
#include "run/child/timing/timed_rounds.hpp"

#include <algorithm>

#include "base/system/clock.hpp"
#include "profile/ranges.hpp"
#include "run/child/timing/samples.hpp"
#include "run/results/speedups.hpp"

namespace aisp::run {
namespace {

// Each partial result holds all samples, so the later ones wait until sampling has taken an eighth longer.
constexpr double partial_every_s = 1, partial_growth = 0.125;
// Reading the GPU's state more often would dominate short rounds.
constexpr double state_every_s = 0.01;
// On the host a watched sample takes so much longer, and watching may take this part of the rounds, but every eighth sample is
// watched and at least half are not.
constexpr double watched_s = 0.008, most_watching = 0.1, least_watched = 0.125, most_watched = 0.5;
constexpr int quick_resamples = 200;  // enough to decide whether to go on; the reported interval uses more

std::size_t bytes_kept(const measure::Sample& sample) {
  return sample.marks.capacity() * sizeof(pair::Mark) + sample.metrics.capacity() * sizeof(measure::MetricValue);
}

}  // namespace

measure::Sampling TimedRounds::take(const measure::SamplingOptions& options) {
  start_s_ = now_s();
  round_start_s_ = start_s_;
  const double began_s = base::monotonic_s();
  last_partial_s_ = began_s;
  if (!options.alternate) renew(Renewal::Kind::variable);
  measure::SamplingCallbacks callbacks;
  callbacks.before_round = [&](int round) { before_round(round); };
  callbacks.time = [&](std::size_t index) { return time(index); };
  callbacks.speedup = [&](const auto& baseline, const auto& variant) { return speedup(baseline, variant); };
  callbacks.now_s = [&] { return now_s(); };
  callbacks.after_round = [&](int round, int expected) {
    after_round(round);
    tell(round, expected, options);
    const double present_s = base::monotonic_s(), since_s = present_s - last_partial_s_;
    if (since_s >= partial_every_s && since_s >= partial_growth * (present_s - began_s)) send_partial();
  };
  stopwatch_.executor().children().start_over();
  measure::Sampling sampling = measure::sample_rounds(samples_.timed.size(), options, callbacks);
  record_.result().sampling_s = now_s() - start_s_;
  return sampling;
}

void TimedRounds::renew(Renewal::Kind kind) {
  watchers_.inputs.replace(kind);
  // Every variant has prepared again.
  if (kind == Renewal::Kind::everything) {
    stopwatch_.executor().children().forget();
    samples_.constants_since_round = present_round_;
  }
  ++record_.result().inputs_drawn;
}

void TimedRounds::before_round(int round) {
  present_round_ = round;
  const Renewal::Kind kind = watchers_.inputs.renewal().due(round, now_s() - start_s_);
  if (kind != Renewal::Kind::none) renew(kind);
  if (context_.pair.device == Device::host) {
    const double watching_s = watched_s * static_cast<double>(samples_.timed.size());
    watchers_.samples.watch(std::clamp(most_watching * round_s_ / watching_s, least_watched, most_watched));
  }
  round_start_s_ = now_s();
}

measure::Sample TimedRounds::time(std::size_t index) {
  Timed& timed = samples_.timed[index];
  const profile::Scope range{timed.result->name};
  measure::Capture capture = watchers_.samples.plan(index);
  measure::Sample taken = stopwatch_.time(*timed.variant, capture);
  take_slowest(context_.ranks, taken);
  taken.round = present_round_;
  watchers_.samples.inspect(index, capture, taken);
  note_limits(index);
  timed.samples.push_back(taken);
  // The rounds keep one copy, partial results the other.
  watchers_.leaks.harness_keeps(bytes_kept(taken) + bytes_kept(timed.samples.back()));
  return taken;
}

void TimedRounds::note_limits(std::size_t index) {
  const std::vector<std::string>& changed = stopwatch_.executor().changed_limits();
  if (changed.empty() || !limits_told_.insert(index).second) return;
  record_.fail_variant(*samples_.timed[index].result, "limits", "a timed run changed " + changed.front() + " and left it so",
                       "set it in the constructor, or put it back in the run");
}

measure::Interval TimedRounds::speedup(const std::vector<measure::Sample>& baseline,
                                       const std::vector<measure::Sample>& variant) {
  const Judge judge{std::string{context_.pair.judged_by}, context_.request.seed, context_.pair.device == Device::host};
  measure::Correction known = correction_of(context_.pair, samples_, assumed_probe_work(context_));
  known.accuracy = 0;  // more rounds do not improve it
  const measure::Interval interval = context_.ranks.of_first(
      "the interval", speedup_interval(baseline, variant, judge, {.resamples = quick_resamples, .correction = known}));
  looked_at_ = interval.relative_width();
  return interval;
}

void TimedRounds::after_round(int round) {
  // The copies that samples are compared with have been allocated by now.
  if (round == 1) watchers_.leaks.before();
  else watchers_.leaks.round_ended();
  round_s_ = now_s() - round_start_s_;
  samples_.probe_ms.push_back(stopwatch_.time_probe());
  if (context_.pair.device == Device::gpu) read_state(round);
}

void TimedRounds::read_state(int round) {
  std::vector<evidence::GpuState>& states = record_.result().gpu_states;
  const bool fresh = round > 0 && base::monotonic_s() - last_state_s_ < state_every_s;
  states.push_back(fresh ? evidence::GpuState{states.back()} : context_.environment.sample());
  if (!fresh) last_state_s_ = base::monotonic_s();
}

void TimedRounds::tell(int round, int expected, const measure::SamplingOptions& options) const {
  stages_.tell({.round = round + 1,
                .of = expected,
                .interval_percent = looked_at_ * 100,
                .wanted_percent = options.fixed_rounds ? 0 : options.relative_width * 100,
                .spent_s = base::monotonic_s() - start_s_,
                .budget_s = options.budget_s});
}

void TimedRounds::send_partial() {
  last_partial_s_ = base::monotonic_s();
  const measure::Correction known = correction_of(context_.pair, samples_, assumed_probe_work(context_));
  samples_.known_offset_ms = known.offset();
  note_times(context_.request, record_, samples_.timed, known);
  record_.send_partial();
}

}  // namespace aisp::run
