// SPDX-License-Identifier: Apache-2.0
#include "measure/rounds.hpp"

#include <algorithm>
#include <numeric>
#include <random>

#include "measure/statistics.hpp"

namespace aisp::measure {
namespace {

constexpr int check_every_rounds = 10;
constexpr int quick_resamples = 200;  // enough to decide whether to go on; the reported interval uses more

std::vector<double> judged_values(const std::vector<Sample>& samples, const SamplingCallbacks& callbacks) {
  std::vector<double> values;
  values.reserve(samples.size());
  for (const Sample& sample : samples) values.push_back(callbacks.judged(sample));
  return values;
}

bool narrow_enough(const Sampling& sampling, const SamplingOptions& options, const SamplingCallbacks& callbacks) {
  const std::vector<double> baseline = judged_values(sampling.samples[0], callbacks);
  for (std::size_t v = 1; v < sampling.samples.size(); ++v) {
    const std::vector<double> values = judged_values(sampling.samples[v], callbacks);
    if (ratio_of_medians(baseline, values, options.seed, quick_resamples).relative_width() > options.relative_width) return false;
  }
  return true;
}

void add_sample(Sampling& sampling, std::size_t variant, int round, const SamplingCallbacks& callbacks) {
  Sample sample = callbacks.time(variant);
  sample.round = round;
  sampling.samples[variant].push_back(std::move(sample));
}

Sampling in_sequence(Sampling sampling, std::size_t variants, const SamplingOptions& options,
                     const SamplingCallbacks& callbacks) {
  const double share_s = options.budget_s / static_cast<double>(variants);
  int rounds = options.min_rounds;
  sampling.stopped_because = options.fixed_rounds ? "fixed iterations" : "time budget";
  for (std::size_t variant = 0; variant < variants; ++variant) {
    const double start_s = callbacks.now_s();
    Deadline deadline{options.deadline_s / static_cast<double>(variants), callbacks.now_s};
    for (int round = 0; round < rounds; ++round) {
      add_sample(sampling, variant, round, callbacks);
      callbacks.after_round(round, rounds);
      // All variants have as many as the first.
      if (variant != 0) continue;
      if (deadline.comes() && round + 1 >= least_rounds) {
        if (round + 1 < options.min_rounds) sampling.stopped_because = "stage limit";
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

  std::mt19937_64 random{options.seed};
  std::vector<std::size_t> order(variants);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const double start_s = callbacks.now_s();
  Deadline deadline{options.deadline_s, callbacks.now_s};
  for (int round = 0;; ++round) {
    if (callbacks.before_round) callbacks.before_round(round);
    std::shuffle(order.begin(), order.end(), random);
    for (const std::size_t variant : order) add_sample(sampling, variant, round, callbacks);
    sampling.rounds = round + 1;
    callbacks.after_round(round, std::max(options.min_rounds, round + 1));
    if (deadline.comes() && sampling.rounds >= least_rounds && sampling.rounds < options.min_rounds) {
      sampling.stopped_because = "stage limit";
      return sampling;
    }
    if (sampling.rounds < options.min_rounds) continue;
    if (options.fixed_rounds) {
      sampling.stopped_because = "fixed iterations";
      return sampling;
    }
    if (sampling.rounds % check_every_rounds == 0 && narrow_enough(sampling, options, callbacks)) {
      sampling.stopped_because = "interval narrow";
      return sampling;
    }
    if (callbacks.now_s() - start_s >= options.budget_s) {
      sampling.stopped_because = "time budget";
      return sampling;
    }
    if (sampling.rounds >= options.max_rounds) {
      sampling.stopped_because = "most rounds";
      return sampling;
    }
  }
}

}  // namespace aisp::measure
