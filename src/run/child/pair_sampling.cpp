// SPDX-License-Identifier: Apache-2.0
// Warm-up and the timed rounds.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "base/system/clock.hpp"
#include "run/child/pair_run.hpp"
#include "run/child/renewal.hpp"
#include "run/results/assemble.hpp"
#include "verify/leaks.hpp"

namespace aisp::run {
namespace {

// Clocks need a moment of load to rise from idle.
constexpr double shortest_warmup_s = 0.1;
constexpr double partial_every_s = 1;
// Independent random numbers from one seed.
enum : std::uint64_t { stream_of_inputs = 0x1000, stream_of_order, stream_of_looks, stream_of_checks, stream_of_executor };
// Preparing again may take this much of the stage.
constexpr double longest_prepare_share = 0.3;
// The reference of the verification took longer than this: it is not computed again beside the samples.
constexpr double longest_reference_s = 2;
// Reading it must not fill short rounds.
constexpr double state_every_s = 0.01;
constexpr int quick_resamples = 200;  // enough to decide whether to go on; the reported interval uses more
// The probe kernel's own duration on an H200; used where CUPTI is missing.
constexpr double assumed_probe_ms = 0.0013;

}  // namespace

std::unique_ptr<measure::Stopwatch> PairRun::make_stopwatch() {
  const measure::Conditions conditions{.start = start_, .cache = pair_.cache};
  if (pair_.device == Device::host) return measure::make_host_stopwatch(*session_);
  if (request_.mode == TimingMode::timer) return measure::make_timer_stopwatch(*session_, conditions);
  if (request_.mode == TimingMode::kernel) return measure::make_kernel_stopwatch(*session_, conditions);
  return measure::make_event_stopwatch(*session_, conditions);
}

void PairRun::warm_up() {
  // Until the audit measures it.
  const bool by_events = session_->on_gpu() && (request_.mode == TimingMode::events || request_.mode == TimingMode::do_bench);
  probe_duration_ms_ = by_events ? assumed_probe_ms : 0;
  probe_measured_ = false;
  stopwatch_ = make_stopwatch();
  stopwatch_->executor().seed(random_bits(result_.seed, stream_of_executor));
  timed_.clear();
  for (const Variant* variant : active()) timed_.push_back({variant, &result_of(variant->name), {}});
  const int rounds = std::max(request_.warmup, 1);
  const double start_s = base::monotonic_s();
  measure::Deadline deadline{stages_.left_s(), base::monotonic_s};
  const auto more = [&](int done) {
    if (done > 0 && deadline.comes()) return false;
    return done < rounds || (session_->on_gpu() && base::monotonic_s() - start_s < shortest_warmup_s);
  };
  for (int round = 0; more(round); ++round) {
    for (const Timed& timed : timed_) {
      const profile::Scope range{timed.result->name};
      stopwatch_->time(*timed.variant);
    }
    probe_ms_.push_back(stopwatch_->time_probe());
  }
  offset_ms_ = correction().offset();
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
                                   .seed = random_bits(result_.seed, stream_of_order)};
  if (request_.mode == TimingMode::do_bench) options.relative_width = 0;  // time-budgeted
  probe_ms_.clear();
  sample(options);
}

void PairRun::send_progress(const RoundProgress& progress) {
  reporter_.send(nlohmann::json{{"progress",
                                 {{"round", progress.round},
                                  {"of", progress.of},
                                  {"interval_percent", progress.interval_percent},
                                  {"wanted_percent", progress.wanted_percent},
                                  {"spent_s", progress.spent_s},
                                  {"budget_s", progress.budget_s}}}}
                     .dump());
}

void PairRun::sample(measure::SamplingOptions options) {
  const Judge judge{std::string{pair_.judged_by}, request_.seed};
  std::vector<const Variant*> variants;
  for (const Timed& timed : timed_) variants.push_back(timed.variant);
  double prepare_s = 0;
  for (const verify::Outcome& outcome : outcomes_) prepare_s += outcome.prepare_ms * 1e-3;
  watch_ = std::make_unique<verify::SampleWatch>(*session_, variants, outcomes_, random_bits(result_.seed, stream_of_looks));
  Renewal renewal{*session_,          variants,
                  options.min_rounds, random_bits(result_.seed, stream_of_inputs),
                  prepare_s,          request_.limits.measurement * longest_prepare_share};
  const verify::LeakWatch::OwnBytes own_bytes = [this] { return ground_->own_device_bytes(); };
  verify::LeakWatch leaks{*session_, own_bytes};
  leaks.before();
  const double start_s = base::monotonic_s();
  double last_partial_s = start_s, last_state_s = 0;
  double round_s = 0, round_start_s = start_s;
  const bool with_reference =
      pair_.verification == Verification::timed_shape && outcomes_.front().reference_s < longest_reference_s;
  std::mt19937_64 random{random_bits(result_.seed, stream_of_checks)};
  int present_round = 0;
  double looked_at = 0;  // relative width of an interval; the last of a look is one that was too wide, if any was
  // The present inputs end. Against the reference once, in a round that nobody can foresee, or else at the end.
  const auto settle = [&](bool last) {
    const bool check = with_reference && watch_->truths_checked() == 0 && (last || random() % 4 == 0);
    if (check) watch_->check_truth();
    watch_->settle();
  };
  const auto draw = [&](Renewal::Kind kind) {
    settle(false);
    watch_->inputs_drawn(renewal.draw(kind));
    ++result_.inputs_drawn;
  };
  if (!options.alternate) draw(Renewal::Kind::variable);
  measure::SamplingCallbacks callbacks;
  callbacks.before_round = [&](int round) {
    present_round = round;
    if (const Renewal::Kind kind = renewal.due(round, base::monotonic_s() - start_s); kind != Renewal::Kind::none) draw(kind);
    round_start_s = base::monotonic_s();
  };
  callbacks.time = [&](std::size_t index) {
    const profile::Scope range{timed_[index].result->name};
    const double each_s = round_s / static_cast<double>(timed_.size());
    measure::Capture capture = watch_->wish(index, renewal.dear_beside(each_s));
    measure::Sample taken = stopwatch_->time(*timed_[index].variant, capture);
    taken.round = present_round;
    watch_->look(index, capture, taken);
    note_limits(index);
    timed_[index].samples.push_back(taken);
    return taken;
  };
  callbacks.speedup = [&](const auto& baseline, const auto& variant) {
    measure::Correction known = correction();
    known.accuracy = 0;  // more rounds do not improve it
    const measure::Interval interval =
        speedup_interval(baseline, variant, judge, {.resamples = quick_resamples, .correction = known});
    looked_at = interval.relative_width();
    return interval;
  };
  callbacks.now_s = base::monotonic_s;
  callbacks.after_round = [&](int round, int expected) {
    // The copies that samples are compared with are there by now.
    if (round == 1) leaks.before();
    round_s = base::monotonic_s() - round_start_s;
    probe_ms_.push_back(stopwatch_->time_probe());
    if (session_->on_gpu()) {
      const bool fresh = round > 0 && base::monotonic_s() - last_state_s < state_every_s;
      result_.gpu_states.push_back(fresh ? evidence::GpuState{result_.gpu_states.back()} : ground_->sample());
      if (!fresh) last_state_s = base::monotonic_s();
    }
    send_progress({.round = round + 1,
                   .of = expected,
                   .interval_percent = looked_at * 100,
                   .wanted_percent = options.fixed_rounds ? 0 : options.relative_width * 100,
                   .spent_s = base::monotonic_s() - start_s,
                   .budget_s = options.budget_s});
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
  settle(true);
  result_.inputs_checked = watch_->truths_checked();
  if (!session_->inputs_untouched())
    problem({}, "inputs_unchanged", "an input was modified while samples were timed",
            "declare the buffer as inout, or write to an output");
  for (const std::string& damage : session_->damaged_red_zones())
    problem({}, "red_zones", damage, "an index runs past the buffer");
  leaks.after();
  if (const std::string left = leaks.text_of_each(timed_.size() * timed_.front().samples.size()); !left.empty())
    problem({}, "memory", left, "free what the run allocates, or allocate it in the constructor");
  check_samples();
  if (sampling.rounds < options.min_rounds)
    result_.warnings.push_back(
        fmt::format("{} of {} rounds: more did not fit into the {:g} s of the measurement; "
                    "--timeout-multiplier gives it more",
                    sampling.rounds, options.min_rounds, request_.limits.measurement));
}

}  // namespace aisp::run
