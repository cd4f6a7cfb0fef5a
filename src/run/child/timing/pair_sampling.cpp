// SPDX-License-Identifier: Apache-2.0
// Runs the warm-up and the timed rounds.
#include "run/child/timing/pair_sampling.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "profile/ranges.hpp"
#include "run/child/context.hpp"
#include "run/child/timing/samples.hpp"
#include "run/child/timing/timed_rounds.hpp"
#include "run/wire/blank.hpp"

namespace aisp::run {
namespace {

// Clocks need a moment of load to rise from idle.
constexpr double shortest_warmup_s = 0.1;
// Preparing again may take this much of the stage.
constexpr double longest_prepare_share = 0.3;
// A reference that took longer than this in verification is not computed again during the samples.
constexpr double longest_reference_s = 2;

std::unique_ptr<measure::Stopwatch> make_stopwatch(const Context& context, pair::Session& session, Start start) {
  const measure::Conditions conditions{.start = start, .cache = context.pair.cache};
  if (context.pair.device == Device::host) return measure::make_host_stopwatch(session);
  if (context.request.mode == TimingMode::timer) return measure::make_timer_stopwatch(session, conditions);
  if (context.request.mode == TimingMode::kernel) return measure::make_kernel_stopwatch(session, conditions);
  return measure::make_event_stopwatch(session, conditions);
}

measure::SamplingOptions options_for(const Context& context, double left_s) {
  const Request& request = context.request;
  measure::SamplingOptions options{.min_rounds = std::max(request.iterations, 1),
                                   .fixed_rounds = request.fixed_iterations,
                                   .relative_width = request.confidence_width,
                                   .budget_s = request.budget_s,
                                   .deadline_s = left_s,
                                   .alternate = request.alternate,
                                   .seed = random_bits(context.timed_seed, stream_of_order)};
  if (request.mode == TimingMode::do_bench) options.relative_width = 0;  // time-budgeted
  return options;
}

std::vector<Timed> to_be_timed(Record& record) {
  std::vector<Timed> timed;
  for (const Variant* variant : record.active()) timed.push_back({variant, &record.of(variant->name), {}});
  return timed;
}

Renewal renewal_for(const Context& context, pair::Session& session, const std::vector<const Variant*>& variants,
                    const std::vector<verify::Outcome>& outcomes, int min_rounds) {
  double prepare_s = 0;  // of rank 0, as that of the others may differ
  for (const verify::Outcome& outcome : outcomes) prepare_s += outcome.prepare_ms * 1e-3;
  return {session,
          variants,
          min_rounds,
          random_bits(context.timed_seed, stream_of_inputs),
          context.ranks.of_first("the time to prepare", prepare_s),
          context.request.limits.measurement * longest_prepare_share};
}

void note_start(Record& record, const pair::Session& session, Start start) {
  if (session.on_gpu()) record.result().start = recorded(start);
  record.result().host_dependent |= start == Start::immediate;
}

void take_over(const Request& request, evidence::PairResult& result, measure::Sampling& sampling, std::vector<Timed>& timed) {
  double inside_ms = 0;
  for (std::size_t i = 0; i < timed.size(); ++i) {
    timed[i].samples = std::move(sampling.samples[i]);
    for (const measure::Sample& taken : timed[i].samples) inside_ms += taken.raw_ms;
  }
  // The timer's samples are means of a block.
  if (result.sampling_s > 0 && request.mode != TimingMode::timer)
    result.duty_percent = std::min(100.0, inside_ms * 0.1 / result.sampling_s);
  result.stopped_because = sampling.stopped_because;
}

void check_memory(Record& record, pair::Session& session, verify::LeakWatch& leaks, std::size_t runs) {
  if (!session.inputs_untouched())
    record.problem({}, "inputs_unchanged", "an input was modified while samples were timed",
                   "declare the buffer as inout, or write to an output");
  for (const std::string& damage : session.damaged_red_zones())
    record.problem({}, "red_zones", damage, "an index runs past the buffer");
  leaks.after();
  if (const std::string left = leaks.text_of_each(runs); !left.empty())
    record.problem({}, "memory", left, "free what the run allocates, or allocate it in the constructor");
}

}  // namespace

double warm_up(const Context& context, const Stages& stages, const Record& record, Resources& resources, Start start) {
  resources.stopwatch = make_stopwatch(context, *resources.session, start);
  measure::Stopwatch& stopwatch = *resources.stopwatch;
  stopwatch.executor().seed(random_bits(context.timed_seed, stream_of_executor));
  const int rounds = std::max(context.request.warmup, 1);
  const auto now_s = [&] { return context.ranks.now_s(); };
  const double start_s = now_s();
  measure::Deadline deadline{context.ranks.of_first("the time left", stages.left_s()), now_s};
  const auto more = [&](int done) {
    if (done > 0 && deadline.comes()) return false;
    return done < rounds || (context.pair.device == Device::gpu && now_s() - start_s < shortest_warmup_s);
  };
  const std::vector<const Variant*> variants = record.active();
  Samples samples;
  for (int round = 0; more(round); ++round) {
    for (const Variant* variant : variants) {
      const profile::Scope range{std::string{variant->name}};
      stopwatch.time(*variant);
    }
    samples.probe_ms.push_back(stopwatch.time_probe());
  }
  return correction_of(context.pair, samples, assumed_probe_work(context)).offset();
}

Samples measure_rounds(const Context& context, const Stages& stages, Record& record, const Resources& resources,
                       const Verified& verified, double offset_ms) {
  pair::Session& session = *resources.session;
  const std::uint64_t seed = context.timed_seed;
  note_start(record, session, verified.start);
  const measure::SamplingOptions options = options_for(context, context.ranks.of_first("the time left", stages.left_s()));
  Samples samples{.timed = to_be_timed(record), .known_offset_ms = offset_ms};
  const std::vector<const Variant*> variants = record.active();
  verify::SampleWatch watch{session, variants, verified.outcomes, random_bits(seed, stream_of_looks)};
  const bool quick_reference = verified.outcomes.front().reference_s < longest_reference_s;
  const bool with_reference = context.pair.verification == Verification::timed_shape &&
                              context.ranks.all("the time of the reference", quick_reference, {});
  PresentInputs inputs{renewal_for(context, session, variants, verified.outcomes, options.min_rounds), watch, with_reference,
                       random_bits(seed, stream_of_checks)};
  const verify::LeakWatch::OwnBytes own_bytes = [&context] { return context.environment.own_device_bytes(); };
  verify::LeakWatch leaks{session, own_bytes};
  leaks.before();
  TimedRounds rounds{context, stages, record, *resources.stopwatch, {watch, inputs, leaks}, samples};
  measure::Sampling sampling = rounds.take(options);
  const double children_ms = resources.stopwatch->executor().children().outside_ms();
  take_over(context.request, record.result(), sampling, samples.timed);
  inputs.end();
  if (inputs.renewal().keeps_what_is_prepared())
    record.warn("preparing all variants takes so long that constant inputs and what was prepared stayed the same in all rounds");
  record.result().inputs_checked = watch.truths_checked();
  check_memory(record, session, leaks, samples.timed.size() * samples.timed.front().samples.size());
  check_samples(context, record, session, verified, samples.timed, watch);
  check_children(context, record, samples.timed, children_ms);
  if (sampling.rounds < options.min_rounds)
    record.warn(
        fmt::format("{} of {} rounds: more did not fit into the {:g} s of the measurement; "
                    "--timeout-multiplier gives it more",
                    sampling.rounds, options.min_rounds, context.request.limits.measurement));
  return samples;
}

}  // namespace aisp::run
