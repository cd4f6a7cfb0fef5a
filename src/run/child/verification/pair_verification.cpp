// SPDX-License-Identifier: Apache-2.0
#include "run/child/verification/pair_verification.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <vector>

#include "measure/statistics/statistics.hpp"
#include "pair/all_variants.hpp"
#include "run/child/context.hpp"
#include "run/child/pair_setup.hpp"
#include "run/child/profiling/profiler.hpp"
#include "run/results/declarations.hpp"

namespace aisp::run {
namespace {

verify::Options options_for(const Context& context, std::uint64_t seed) {
  verify::Options options{.seed = seed, .require_repeatable = context.request.reproducible};
  options.own_device_bytes = [&environment = context.environment] { return environment.own_device_bytes(); };
  return options;
}

// Records the accuracy against the float64 reference.
void note_accuracy(evidence::VariantResult& variant, const evidence::Accuracy& accuracy) {
  const double unquantized = variant.accuracy ? variant.accuracy->unquantized_l2 : 0;
  variant.accuracy.reset();
  if (accuracy.samples == 0) return;
  variant.accuracy = accuracy;
  variant.accuracy->unquantized_l2 = std::max(unquantized, accuracy.unquantized_l2);
}

// Records the agreement with the baseline, at the timed shape of a pair whose reference was computed at its small one.
void note_agreement(evidence::VariantResult& variant, const evidence::Accuracy& accuracy) {
  if (!variant.accuracy) return;
  variant.accuracy->versus_baseline_l2 = std::max(variant.accuracy->versus_baseline_l2, accuracy.versus_baseline_l2);
  variant.accuracy->bitwise_repeatable &= accuracy.bitwise_repeatable;
}

void note_digests(evidence::VariantResult& variant, const verify::Outcome& outcome) {
  for (const auto& [name, digest] : outcome.digests) variant.output_digests[name] = fmt::format("{:016x}", digest);
}

void absorb_small_shape(Record& record, const std::vector<verify::Outcome>& outcomes) {
  for (const verify::Outcome& outcome : outcomes) {
    record.absorb_failures(outcome);
    note_accuracy(record.of(outcome.variant), outcome.accuracy);
  }
}

void absorb_timed_shape(const Context& context, Record& record, std::vector<verify::Outcome>& outcomes) {
  for (verify::Outcome& outcome : outcomes)
    for (evidence::Problem& found : outcome.problems) found.stage = record.stage();
  for (const verify::Outcome& outcome : outcomes) {
    record.absorb_failures(outcome);
    evidence::VariantResult& variant = record.of(outcome.variant);
    if (context.pair.verification == Verification::small_shape) note_agreement(variant, outcome.accuracy);
    else note_accuracy(variant, outcome.accuracy);
    // The cost a user pays is the first at the timed shape: a later one may find what the first tuned or compiled.
    if (variant.prepare_ms == 0) variant.prepare_ms = outcome.prepare_ms;
  }
}

void verify_small_shape(const Context& context, Record& record, const verify::Options& options) {
  pair::SessionOptions small_options = session_options(context);
  small_options.small_shape = true;
  pair::Session small{context.pair, std::move(small_options)};
  watch_ranges(small);
  absorb_small_shape(record, verify::verify(small, record.active(), options));
  record.agree(context.ranks);
}

// `earlier`: the outcomes of other inputs; null the first time.
std::vector<verify::Outcome> verify_shapes(const Context& context, Record& record, pair::Session& session,
                                           verify::Options options, const std::vector<verify::Outcome>* earlier) {
  if (context.pair.verification == Verification::small_shape) {
    verify_small_shape(context, record, options);
    options.compare_with_reference = false;
  }
  return verify::verify(session, record.active(), options, earlier);
}

// The slowest rank's time is that of a sample, so it is what timed samples are compared with.
void take_slowest(pair::RankGroup& ranks, std::vector<verify::Outcome>& outcomes) {
  if (!ranks.several()) return;
  for (verify::Outcome& outcome : outcomes) {
    const double own_ms = outcome.undisturbed_ms.empty() ? 0 : measure::median(outcome.undisturbed_ms);
    const std::vector<double> all = ranks.values("the times of the verification", own_ms);
    outcome.undisturbed_ms.clear();
    if (std::ranges::min(all) > 0) outcome.undisturbed_ms.push_back(std::ranges::max(all));
  }
}

void warn_of_loose_limits(const Pair& pair, Record& record) {
  for (const Variant* variant : record.active())
    if (auto warning = loose_limit(record.of(variant->name), pair::tolerances_of(pair, *variant)))
      record.warn(std::move(*warning));
}

// Warns that constant inputs are not renewed: right for a pair about preparing, but readers must know.
void warn_of_constant_inputs(Record& record, const pair::Session& session) {
  if (session.only_constant_inputs())
    record.warn(
        "all inputs are declared constant, so none changes between rounds: no check tells what a run computes from what was "
        "computed in 'prepare'");
}

}  // namespace

Verified verify_from(Start start, Record& record, const std::function<std::vector<verify::Outcome>(Start)>& verify) {
  try {
    return {verify(start), start};
  } catch (const measure::WaitsForGpu& variant) {
    if (start == Start::immediate) throw;
    record.warn(record.located(
        fmt::format("{} waits for the GPU or queues more than fits: timed from an immediate start", variant.what())));
  }
  return {verify(Start::immediate), Start::immediate};
}

std::optional<Verified> verify_first(const Context& context, Record& record, pair::Session& session) {
  verify::Options options = options_for(context, context.request.seed);
  Verified verified = verify_from(context.pair.start, record, [&](Start start) {
    options.start = start;
    return verify_shapes(context, record, session, options, nullptr);
  });
  absorb_timed_shape(context, record, verified.outcomes);
  record.agree(context.ranks);
  take_slowest(context.ranks, verified.outcomes);
  // The digests are those of the timed shape if there are two, and of the run's own seed.
  for (const verify::Outcome& outcome : verified.outcomes) note_digests(record.of(outcome.variant), outcome);
  warn_of_loose_limits(context.pair, record);
  warn_of_constant_inputs(record, session);
  record.verified();
  std::erase_if(verified.outcomes, [](const verify::Outcome& outcome) { return !outcome.passed(); });
  return record.passed() ? std::optional{std::move(verified)} : std::nullopt;
}

std::optional<Start> verify_again(const Context& context, Record& record, pair::Session& session, const Verified& first) {
  verify::Options options = options_for(context, base::OneWay{context.request.seed}(stream_of_second_inputs));
  options.check_memory = false;
  Verified verified = verify_from(first.start, record, [&](Start start) {
    options.start = start;
    return verify_shapes(context, record, session, options, &first.outcomes);
  });
  absorb_timed_shape(context, record, verified.outcomes);
  record.agree(context.ranks);
  return record.passed() ? std::optional{verified.start} : std::nullopt;
}

}  // namespace aisp::run
