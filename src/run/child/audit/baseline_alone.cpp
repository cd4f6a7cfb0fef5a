// SPDX-License-Identifier: Apache-2.0
#include "run/child/audit/baseline_alone.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/system/clock.hpp"
#include "base/system/entropy.hpp"
#include "base/system/files.hpp"
#include "measure/statistics/statistics.hpp"
#include "run/child/timing/pair_sampling.hpp"
#include "run/child/timing/paired_times.hpp"

namespace aisp::run {
namespace {

// As many executions as one verification has, so that nobody who counts them can tell the two apart.
constexpr int verified_runs = 3;
constexpr int turns_in_company = 5;
// Pairs that take longer to set up, or hold more memory, are not set up a second time.
constexpr double longest_setup_s = 1;
// Nor are both executed in turns where that takes longer.
constexpr double longest_turns_s = 4;
constexpr std::uint64_t most_bytes = std::uint64_t{2} << 30;

std::string why_not(const Stages& stages, const pair::Session& session) {
  const double setup_s = stages.records().front().elapsed_s;
  if (setup_s > longest_setup_s) return fmt::format("its set-up takes {:.2g} s", setup_s);
  return session.host_bytes() > most_bytes ? "it holds more than 2 GiB" : "";
}

// Returns the median time of the baseline in a process of its own; nothing if it could not be had.
std::optional<double> alone_ms(const Context& context, const Stages& stages, const Record& record, std::uint64_t inputs) {
  const double limit_s = std::min(4 * longest_setup_s, stages.left_s() / 2);
  record.send(nlohmann::json{{"baseline_wanted", {{"runs", verified_runs}, {"limit_s", limit_s}, {"seed", inputs}}}}.dump());
  const std::filesystem::path answer = std::filesystem::path{context.request.own_folder} / baseline_answer;
  const double start_s = base::monotonic_s();
  std::optional<std::string> text;
  while (!text && base::monotonic_s() - start_s < limit_s + 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds{2});
    text = base::try_read_file(answer);
  }
  if (!text) return std::nullopt;
  std::filesystem::remove(answer);
  std::vector<double> times_ms;
  nlohmann::json::parse(*text).get_to(times_ms);
  return times_ms.empty() ? std::nullopt : std::optional{measure::median(times_ms)};
}

// Executes all variants in turns as in timed rounds, on new inputs, and the baseline alone on the same between them.
std::optional<PairedTimes> in_turns(const Context& context, const Stages& stages, const Record& record, Resources& resources,
                                    const Samples& samples) {
  base::OneWayRandom random{base::OneWay{context.timed_seed}(stream_of_company)};
  PairedTimes times;
  for (int turn = 0; turn < turns_in_company; ++turn) {
    const std::uint64_t inputs = random();
    const std::optional<double> there = alone_ms(context, stages, record, inputs);
    if (!there) return std::nullopt;
    resources.session->refill_variable(inputs);
    // The first round follows a pause, unlike those that were timed.
    for (int round = 0; round <= verified_runs; ++round)
      for (const Timed& timed : samples.timed) {
        measure::Capture capture;
        const std::optional<double> here = measure::host_ms_without_waits(resources.stopwatch->time(*timed.variant, capture));
        if (round > 0 && timed.variant == &context.pair.baseline && here) times.add(*here, *there);
      }
  }
  return times;
}

}  // namespace

void check_baseline_alone(const Context& context, const Stages& stages, Record& record, Resources& resources,
                          const Samples& samples) {
  if (context.request.own_folder.empty() || context.ranks.several()) return;
  evidence::VariantResult& baseline = *samples.timed.front().result;
  const auto not_checked = [&](const std::string& why) {
    if (baseline.checks) baseline.checks->off.push_back("times of the baseline against those in a process of its own: " + why);
  };
  if (const std::string why = why_not(stages, *resources.session); !why.empty()) return not_checked(why);
  const double start_s = base::monotonic_s();
  const std::optional<double> alone = alone_ms(context, stages, record, base::entropy());
  const double process_s = base::monotonic_s() - start_s;
  if (!alone) return not_checked("there it could not be timed");
  // Samples that are watched begin as those of a verification do.
  std::vector<measure::Sample> timed = samples.timed.front().samples;
  std::erase_if(timed, [](const measure::Sample& sample) { return sample.watched; });
  if (!longer(measure::own_host_ms(timed), *alone)) return;
  double round_s = 0;
  for (const Timed& each : samples.timed) round_s += median_of(each.samples, &measure::Sample::raw_ms) * 1e-3;
  if (turns_in_company * (process_s + (verified_runs + 1) * round_s) > longest_turns_s)
    return not_checked("they differ, and measuring them in turns would take seconds");
  const std::optional<PairedTimes> times = in_turns(context, stages, record, resources, samples);
  if (!times || !times->enough()) return not_checked("they differ, and could not be measured in turns");
  if (!times->longer_here()) {
    if (baseline.checks) baseline.checks->off.emplace_back(longer_in_rounds_only);
    return;
  }
  record.fail_variant(
      baseline, "timed_differently",
      fmt::format("{:.4g} ms beside the other variants, {:.4g} ms in a process in which there are none",
                  measure::median(times->here_ms), measure::median(times->there_ms)),
      "do the same work in every run, and leave nothing behind that slows other variants, such as settings of the "
      "heap or of the process");
}

void send_baseline_times(const Context& context, Record& record, pair::Session& session) {
  const Variant& baseline = context.pair.baseline;
  const std::uint64_t inputs = context.request.seed;
  session.refill(~inputs);
  session.prepare(baseline);
  session.refill_variable(inputs);
  measure::Executor executor{session, {.start = context.pair.start, .cache = context.pair.cache}};
  executor.load(baseline);
  std::vector<double> times_ms;
  for (int run = 0; run < context.request.baseline_runs; ++run) {
    measure::Capture capture{.watch = true};
    const measure::Executed executed = executor.execute(baseline, capture);
    times_ms.push_back(std::max(executed.caller_cpu_ms, executed.host_ms - executed.cpu_wait_ms.value_or(0)));
  }
  record.send(nlohmann::json{{"baseline_ms", times_ms}}.dump());
}

}  // namespace aisp::run
