// SPDX-License-Identifier: Apache-2.0
#include "measure/rounds.hpp"

#include <algorithm>
#include <numeric>

#include "base/one_way.hpp"

namespace aisp::measure {

using evidence::StopReason;
namespace {

// If rounds resemble one another, a few independent ones can look narrow by luck, and each look is another chance of it.
constexpr double fewest_effective_rounds = 40;

bool narrow_enough(const Interval& speedup, double relative_width) {
  const bool independent = speedup.effective_rounds >= static_cast<double>(speedup.rounds);
  return speedup.relative_width() <= relative_width && (independent || speedup.effective_rounds >= fewest_effective_rounds);
}

bool narrow_enough(const Sampling& sampling, const SamplingOptions& options, const SamplingCallbacks& callbacks) {
  for (std::size_t v = 1; v < sampling.samples.size(); ++v)
    if (!narrow_enough(callbacks.speedup(sampling.samples[0], sampling.samples[v]), options.relative_width)) return false;
  return true;
}

// Each inspection of the interval is another chance to find it narrow by luck, and takes time that grows with the rounds.
int next_look(int rounds) { return rounds + std::max(10, rounds / 8); }

void add_sample(Sampling& sampling, std::size_t variant, int round, const SamplingCallbacks& callbacks) {
  Sample sample = callbacks.time(variant);
  sample.round = round;
  sampling.samples[variant].push_back(std::move(sample));
}

Sampling in_sequence(Sampling sampling, std::size_t variants, const SamplingOptions& options,
                     const SamplingCallbacks& callbacks) {
  const double share_s = options.budget_s / static_cast<double>(variants);
  int rounds = options.min_rounds;
  sampling.stopped_because = options.fixed_rounds ? StopReason::fixed_iterations : StopReason::time_budget;
  for (std::size_t variant = 0; variant < variants; ++variant) {
    const double start_s = callbacks.now_s();
    Deadline deadline{options.deadline_s / static_cast<double>(variants), callbacks.now_s};
    for (int round = 0; round < rounds; ++round) {
      add_sample(sampling, variant, round, callbacks);
      callbacks.after_round(round, rounds);
      // All variants have as many as the first.
      if (variant != 0) continue;
      if (deadline.comes() && round + 1 >= least_rounds) {
        if (round + 1 < options.min_rounds) sampling.stopped_because = StopReason::stage_limit;
        rounds = round + 1;
        break;
      }
      const bool more = !options.fixed_rounds && round + 1 == rounds && rounds < options.max_rounds;
      if (more && callbacks.now_s() - start_s < share_s) ++rounds;
    }
  }
  sampling.rounds = rounds;
  return sampling;
}

}  // namespace

Sampling sample_rounds(std::size_t variants, const SamplingOptions& options, const SamplingCallbacks& callbacks) {
  Sampling sampling;
  sampling.samples.resize(variants);
  if (!options.alternate) return in_sequence(std::move(sampling), variants, options, callbacks);

  base::OneWayRandom random{options.seed};
  std::vector<std::size_t> order(variants);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const double start_s = callbacks.now_s();
  Deadline deadline{options.deadline_s, callbacks.now_s};
  int look = options.min_rounds;
  for (int round = 0;; ++round) {
    if (callbacks.before_round) callbacks.before_round(round);
    std::shuffle(order.begin(), order.end(), random);
    for (const std::size_t variant : order) add_sample(sampling, variant, round, callbacks);
    sampling.rounds = round + 1;
    callbacks.after_round(round, std::max(options.min_rounds, round + 1));
    if (deadline.comes() && sampling.rounds >= least_rounds && sampling.rounds < options.min_rounds) {
      sampling.stopped_because = StopReason::stage_limit;
      return sampling;
    }
    if (sampling.rounds < options.min_rounds) continue;
    if (options.fixed_rounds) {
      sampling.stopped_because = StopReason::fixed_iterations;
      return sampling;
    }
    const double elapsed_s = callbacks.now_s() - start_s;
    const bool cheap = sampling.rounds < options.cheap_rounds && elapsed_s < options.cheap_s;
    if (!cheap && sampling.rounds >= std::max(look, options.telling_rounds)) {
      if (narrow_enough(sampling, options, callbacks)) {
        sampling.stopped_because = StopReason::interval_narrow;
        return sampling;
      }
      look = next_look(sampling.rounds);
    }
    if (elapsed_s >= options.budget_s) {
      sampling.stopped_because = StopReason::time_budget;
      return sampling;
    }
    if (sampling.rounds >= options.max_rounds) {
      sampling.stopped_because = StopReason::most_rounds;
      return sampling;
    }
  }
}

}  // namespace aisp::measure
