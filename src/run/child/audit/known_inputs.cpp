// SPDX-License-Identifier: Apache-2.0
#include "run/child/audit/known_inputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "measure/statistics/statistics.hpp"
#include "run/child/audit/timed_difference.hpp"
#include "run/child/timing/pair_sampling.hpp"

namespace aisp::run {
namespace {

constexpr int rounds = 5;
// A variant must gain this factor by what it remembers, and this time.
constexpr double least_factor = 2, least_saved_ms = 0.02;
// Executions that take longer in all are left out.
constexpr double longest_ms = 5000;

bool much_faster(double known_ms, double new_ms) {
  return least_factor * known_ms < new_ms && new_ms - known_ms > least_saved_ms;
}

OnInputs execute(measure::Executor& executor, pair::Session& session, const Timed& timed, int since_round,
                 std::mt19937_64& random) {
  OnInputs times;
  const auto once = [&](std::uint64_t seed, std::vector<double>& to) {
    session.refill_variable(seed);
    measure::Capture capture{.digest = false, .inputs = seed};
    to.push_back(executor.execute(*timed.variant, capture).cpu_ms);
  };
  for (const std::uint64_t known : timed_inputs(timed, since_round, rounds, random)) {
    const bool known_first = random() % 2 == 0;
    if (known_first) once(known, times.known_ms);
    once(random(), times.new_ms);
    if (!known_first) once(known, times.known_ms);
  }
  return times;
}

}  // namespace

bool may_remember(const std::vector<measure::Sample>& samples) {
  // CPU time too: a busy machine hides the difference of the others.
  return std::ranges::any_of(std::array{&measure::Sample::raw_ms, &measure::Sample::caller_cpu_ms}, [&](auto time_ms) {
    std::vector<double> new_ms, known_ms;
    for (const measure::Sample& sample : samples) (sample.again_on_inputs ? known_ms : new_ms).push_back(sample.*time_ms);
    return !new_ms.empty() && !known_ms.empty() && much_faster(measure::median(known_ms), measure::median(new_ms));
  });
}

bool OnInputs::tells() const {
  if (new_ms.empty() || known_ms.empty()) return false;
  return std::ranges::max(known_ms) < std::ranges::min(new_ms) && much_faster(measure::median(known_ms), measure::median(new_ms));
}

void check_known_inputs(const Context& context, Record& record, pair::Session& session, const measure::Conditions& conditions,
                        const Samples& samples) {
  if (session.only_constant_inputs()) return;
  measure::Executor executor{session, conditions};
  std::mt19937_64 random{random_bits(context.request.seed, stream_of_timed_inputs)};
  for (const Timed& timed : samples.timed) {
    if (timed.variant->outputs == no_outputs || !may_remember(timed.samples)) continue;
    if (2 * 2 * rounds * median_of(timed.samples, &measure::Sample::raw_ms) > longest_ms) {
      if (timed.result->checks)
        timed.result->checks->off.emplace_back("times on inputs of timed rounds against times on others: they take seconds");
      continue;
    }
    // Twice: the time of an honest variant may depend on its data, and five inputs may be alike by chance.
    const OnInputs times = execute(executor, session, timed, samples.constants_since_round, random);
    if (!times.tells() || !execute(executor, session, timed, samples.constants_since_round, random).tells()) continue;
    record.fail_variant(
        *timed.result, "timed_differently",
        fmt::format(
            "{:.4g} ms of CPU time on new inputs, {:.4g} ms on those of timed rounds, written anew too: something is remembered",
            measure::median(times.new_ms), measure::median(times.known_ms)),
        "compute everything from the inputs in every run");
  }
}

}  // namespace aisp::run
