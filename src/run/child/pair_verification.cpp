// SPDX-License-Identifier: Apache-2.0
// What verification says of each variant, and what it costs the pair.
#include <fmt/format.h>

#include <algorithm>

#include "run/child/pair_run.hpp"
#include "run/child/profiler.hpp"
#include "run/results/loose_limit.hpp"

namespace aisp::run {
namespace {

constexpr std::uint64_t stream_of_edges = 0xED6E;

}  // namespace

bool PairRun::verify_all(bool again, std::uint64_t seed) {
  const bool small = pair_.verification == Verification::small_shape;
  verify::Options options{.seed = seed, .require_repeatable = request_.reproducible, .check_memory = !again};
  options.own_device_bytes = [this] { return ground_->own_device_bytes(); };
  std::vector<verify::Outcome> outcomes = verify_from(start_, [&] { return verify_shapes(options, again); });
  for (verify::Outcome& outcome : outcomes)
    for (evidence::Problem& found : outcome.problems) found.stage = stages_.current();
  absorb(outcomes, !small, again);
  if (!again) {
    warn_of_loose_limits();
    warn_of_constant_inputs();
    outcomes_ = std::move(outcomes);
  }
  // Only what is left is timed, and outcomes of the second verification line up with it.
  std::erase_if(outcomes_, [&](const verify::Outcome& outcome) { return !outcome.passed(); });
  return result_.status == evidence::Status::passed;
}

// From an immediate `start` where a variant cannot be released with its work queued.
std::vector<verify::Outcome> PairRun::verify_from(Start& start, const std::function<std::vector<verify::Outcome>()>& verify) {
  try {
    return verify();
  } catch (const measure::WaitsForGpu& variant) {
    if (start == Start::immediate) throw;
    result_.warnings.push_back(fmt::format("{}{}{} waits for the GPU or queues more than fits: timed from an immediate start",
                                           edge_, edge_.empty() ? "" : ": ", variant.what()));
    start = Start::immediate;
  }
  return verify();
}

std::vector<verify::Outcome> PairRun::verify_shapes(const verify::Options& options, bool again) {
  verify::Options timed_shape = options;
  timed_shape.start = start_;
  if (pair_.verification == Verification::small_shape) {
    verify_small_shape(timed_shape);
    timed_shape.compare_with_reference = false;
  }
  return verify::verify(*session_, active(), timed_shape, again ? &outcomes_ : nullptr);
}

void PairRun::warn_of_loose_limits() {
  for (const Variant* variant : active())
    if (auto warning = loose_limit(result_of(variant->name), variant->tolerance.value_or(pair_.tolerance)))
      result_.warnings.push_back(std::move(*warning));
}

// Nothing is wrong with it where preparing is what the pair is about; a reader must know.
void PairRun::warn_of_constant_inputs() {
  if (session_->only_constant_inputs())
    result_.warnings.push_back(
        "all inputs are declared constant, so none changes between rounds: no check tells what a run computes from what was "
        "computed in 'prepare'");
}

void PairRun::verify_small_shape(const verify::Options& options) {
  pair::Session small{pair_, session_options(true)};
  watch_ranges(small);
  absorb(verify::verify(small, active(), options), true);
}

// Not with sizes that somebody set: edges are of the pair's own.
bool PairRun::verify_edges() {
  if (pair_.edges.empty() || !request_.sizes.empty()) return true;
  stages_.begin("edges", request_.limits.verify);
  for (const Case& edge : pair_.edges) {
    edge_ = fmt::format("edge {} ({})", edge.name, edge.sizes);
    const std::size_t problems = result_.problems.size();
    try {
      verify_edge(edge);
      if (result_.problems.size() == problems) result_.edges.emplace_back(edge.name);
    } catch (const Unsupported& reason) {
      result_.warnings.push_back(fmt::format("{} was left out: {}", edge_, reason.what()));
    }
  }
  edge_.clear();
  return result_.status == evidence::Status::passed;
}

// In a session of its own. Sizes that the edge does not name are those of the run.
void PairRun::verify_edge(const Case& edge) {
  pair::SessionOptions session_of_edge = session_options(pair_.verification == Verification::small_shape);
  for (const auto& [name, value] : pair::parse_sizes(edge.sizes)) session_of_edge.sizes[name] = value;
  pair::Session session{pair_, std::move(session_of_edge)};
  watch_ranges(session);
  Start start = start_;
  verify::Options options{.seed = random_bits(result_.seed, stream_of_edges),
                          .may_be_empty = true,
                          .require_repeatable = request_.reproducible,
                          .check_memory = false};
  std::vector<verify::Outcome> outcomes = verify_from(start, [&] {
    options.start = start;
    return verify::verify_edge(session, active(), options);
  });
  for (verify::Outcome& outcome : outcomes) {
    if (!outcome.unsupported.empty())
      result_.warnings.push_back(fmt::format("{}: {} was left out: {}", edge_, outcome.variant, outcome.unsupported));
    outcome.unsupported.clear();
    for (evidence::Problem& found : outcome.problems) {
      found.stage = stages_.current();
      found.message = edge_ + ": " + found.message;
    }
    absorb_failures(outcome);
  }
}

void PairRun::absorb(const std::vector<verify::Outcome>& outcomes, bool with_reference, bool again) {
  for (const verify::Outcome& outcome : outcomes) {
    absorb_failures(outcome);
    evidence::VariantResult& variant = result_of(outcome.variant);
    if (with_reference) {
      const double unquantized = variant.accuracy ? variant.accuracy->unquantized_l2 : 0;
      variant.accuracy.reset();
      if (outcome.accuracy.samples > 0) {
        variant.accuracy = outcome.accuracy;
        variant.accuracy->unquantized_l2 = std::max(unquantized, outcome.accuracy.unquantized_l2);
      }
    } else if (variant.accuracy) {
      variant.accuracy->versus_baseline_l2 = std::max(variant.accuracy->versus_baseline_l2, outcome.accuracy.versus_baseline_l2);
      variant.accuracy->bitwise_repeatable &= outcome.accuracy.bitwise_repeatable;
    }
    // What a user pays, the first at the timed shape: a later one may find what the first tuned or compiled.
    const bool small_shape = with_reference && pair_.verification == Verification::small_shape;
    if (variant.prepare_ms == 0 && !small_shape) variant.prepare_ms = outcome.prepare_ms;
    // Of the timed shape where there are two, and of the run's own seed.
    if (!again)
      for (const auto& [name, digest] : outcome.digests) variant.output_digests[name] = fmt::format("{:016x}", digest);
  }
}

void PairRun::absorb_failures(const verify::Outcome& outcome) {
  evidence::VariantResult& variant = result_of(outcome.variant);
  if (!outcome.unsupported.empty()) {
    variant.status = evidence::Status::skipped;
    variant.reason = outcome.unsupported;
    if (variant.role == evidence::VariantRole::baseline) throw Unsupported{outcome.unsupported};
  }
  for (const evidence::Problem& found : outcome.problems) {
    variant.status = evidence::Status::failed;
    variant.reason = found.message;
    if (variant.role == evidence::VariantRole::library) {
      leave_out(variant, found.message);
      continue;
    }
    result_.problems.push_back(found);
    result_.status = evidence::Status::failed;
    if (result_.reason.empty()) result_.reason = fmt::format("{}: {}", variant.name, found.message);
  }
}

}  // namespace aisp::run
