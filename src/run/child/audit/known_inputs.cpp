// SPDX-License-Identifier: Apache-2.0
#include "run/child/audit/known_inputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include "measure/statistics/statistics.hpp"
#include "run/child/timing/pair_sampling.hpp"

namespace aisp::run {
namespace {

constexpr int inputs = 15, fewest_faster = 12;  // of equal times so many are faster in 2 % of all cases
// A variant must gain this factor by what it remembers, and this time.
constexpr double least_factor = 1.2, least_saved_ms = 0.02;
// Executions that take longer in all are left out.
constexpr double longest_ms = 5000;
// A processor remembers the branches that it took on fewer bytes of input, so that others come between the two executions.
constexpr std::size_t few_bytes = 1 << 20;
// Gives each execution a time slice of its own. On a busy machine slices may otherwise end in step with the executions, so that
// it is always the new inputs that are met with caches that other programs have filled.
constexpr std::chrono::milliseconds pause{1};

bool much_faster(double known_ms, double new_ms) {
  return least_factor * known_ms < new_ms && new_ms - known_ms > least_saved_ms;
}

std::size_t variable_bytes(const pair::Session& session) {
  std::size_t bytes = 0;
  for (const Buffer& buffer : session.buffers())
    if (!buffer.constant && (buffer.role == Role::input || buffer.role == Role::inout)) bytes += buffer.bytes();
  return bytes;
}

}  // namespace

Repeats repeat(measure::Executor& executor, pair::Session& session, const Variant& variant, std::mt19937_64& random) {
  const auto once = [&](std::uint64_t seed) {
    std::this_thread::sleep_for(pause);
    session.refill_variable(seed);
    measure::Capture capture{.digest = false, .inputs = seed};
    return executor.execute(variant, capture).cpu_ms;
  };
  const bool others_between = variable_bytes(session) < few_bytes;
  Repeats times;
  for (int i = 0; i < inputs; ++i) {
    const std::uint64_t seed = random();
    times.new_ms.push_back(once(seed));
    if (others_between) once(random());
    times.known_ms.push_back(once(seed));
  }
  return times;
}

bool may_remember(const std::vector<measure::Sample>& samples) {
  // CPU time too: a busy machine hides the difference of the others.
  return std::ranges::any_of(std::array{&measure::Sample::raw_ms, &measure::Sample::caller_cpu_ms}, [&](auto time_ms) {
    std::vector<double> new_ms, known_ms;
    for (const measure::Sample& sample : samples) (sample.again_on_inputs ? known_ms : new_ms).push_back(sample.*time_ms);
    return !new_ms.empty() && !known_ms.empty() && much_faster(measure::median(known_ms), measure::median(new_ms));
  });
}

bool Repeats::tell() const {
  int faster = 0;
  for (std::size_t i = 0; i < new_ms.size(); ++i) faster += known_ms[i] < new_ms[i];
  return faster >= fewest_faster && much_faster(measure::median(known_ms), measure::median(new_ms));
}

void check_known_inputs(const Context& context, Record& record, pair::Session& session, const measure::Conditions& conditions,
                        const Samples& samples) {
  if (session.only_constant_inputs()) return;
  measure::Executor executor{session, conditions};
  std::mt19937_64 random{random_bits(context.timed_seed, stream_of_timed_inputs)};
  for (const Timed& timed : samples.timed) {
    if (timed.variant->outputs == no_outputs || !may_remember(timed.samples)) continue;
    constexpr int executions = 2 * 3 * inputs;
    if (executions * median_of(timed.samples, &measure::Sample::raw_ms) > longest_ms) {
      if (timed.result->checks)
        timed.result->checks->off.emplace_back("times on inputs seen before against times on others: they take seconds");
      continue;
    }
    const Repeats times = repeat(executor, session, *timed.variant, random);
    if (!times.tell() || !repeat(executor, session, *timed.variant, random).tell()) continue;
    record.fail_variant(
        *timed.result, "timed_differently",
        fmt::format(
            "{:.4g} ms of CPU time on new inputs, {:.4g} ms when the same were written once more: something is remembered",
            measure::median(times.new_ms), measure::median(times.known_ms)),
        "compute everything from the inputs in every run");
  }
}

}  // namespace aisp::run
