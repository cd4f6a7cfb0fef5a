// SPDX-License-Identifier: Apache-2.0
#include "run/child/audit/baseline_alone.hpp"

#include <fmt/format.h>
#include <aisp/check.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <limits>
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
#include "run/child/verification/memory_account.hpp"

namespace aisp::run {
namespace {

// As many executions as one verification has, so that nobody who counts them can tell the two apart.
constexpr int verified_runs = 3;
constexpr std::uint64_t most_host_bytes = std::uint64_t{2} << 30;
// The first executions of a GPU's baseline may take so long before no more of them are added.
constexpr double longest_first_s = 0.05;
// The free part of a GPU's memory that a second process needs for what the pair does not register, such as code and workspaces.
constexpr std::uint64_t unregistered_bytes = std::uint64_t{2} << 30;

struct Limits {
  int turns;
  double longest_setup_s;  // pairs that take longer to set up are not set up a second time
  double longest_turns_s;  // nor are both executed in turns where that takes longer
};
// On a GPU a process takes a second and more to begin, but few pairs need one: of the others the first executions in their own
// process suffice.
constexpr Limits on_host{.turns = 5, .longest_setup_s = 1, .longest_turns_s = 4};
constexpr Limits on_gpu{.turns = 3, .longest_setup_s = 3, .longest_turns_s = 15};

const Limits& limits_of(const pair::Session& session) { return session.on_gpu() ? on_gpu : on_host; }

double setup_s(const Stages& stages) { return stages.records().front().elapsed_s; }

std::string why_not(const Stages& stages, const pair::Session& session) {
  if (setup_s(stages) > limits_of(session).longest_setup_s) return fmt::format("its set-up takes {:.2g} s", setup_s(stages));
  return session.host_bytes() > most_host_bytes ? "it holds more than 2 GiB of the host" : "";
}

bool fits_twice(const pair::Session& session) {
  return !session.on_gpu() ||
         free_device_bytes(session.gpu_ordinals()) > session.device_bytes() + session.gpu_ordinals().size() * unregistered_bytes;
}

bool by_events(const Context& context) {
  return context.request.mode == TimingMode::events || context.request.mode == TimingMode::do_bench;
}

// Returns the times of executions of the baseline, as the host's clock or events read them.
std::vector<double> times_ms_of(const Context& context, pair::Session& session, int runs, double longest_s) {
  const Variant& baseline = context.pair.baseline;
  const measure::Conditions conditions{.start = context.pair.start, .cache = context.pair.cache};
  if (session.on_gpu()) return measure::event_times_ms(session, conditions, baseline, runs, longest_s);
  measure::Executor executor{session, conditions};
  executor.load(baseline);
  std::vector<double> times_ms;
  for (int run = 0; run < runs; ++run) {
    measure::Capture capture{.watch = true};
    const measure::Executed executed = executor.execute(baseline, capture);
    times_ms.push_back(std::max(executed.caller_cpu_ms, executed.host_ms - executed.cpu_wait_ms.value_or(0)));
  }
  return times_ms;
}

std::optional<double> time_of(const pair::Session& session, const measure::Sample& sample) {
  return session.on_gpu() ? std::optional{sample.raw_ms} : measure::host_ms_without_waits(sample);
}

// Returns the baseline's time in the timed rounds.
double time_in_company(const pair::Session& session, const Timed& baseline) {
  if (session.on_gpu()) return median_of(baseline.samples, &measure::Sample::raw_ms);
  // Samples that are watched begin as those of a verification do.
  std::vector<measure::Sample> timed = baseline.samples;
  std::erase_if(timed, [](const measure::Sample& sample) { return sample.watched; });
  return measure::own_host_ms(timed);
}

// Returns the median time of the baseline in a process of its own; nothing if it could not be had.
std::optional<double> alone_ms(const Context& context, const Stages& stages, const Record& record, const Limits& limits,
                               std::uint64_t inputs) {
  const double limit_s = std::min(4 * limits.longest_setup_s, stages.left_s() / 2);
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
  const Limits& limits = limits_of(*resources.session);
  for (int turn = 0; turn < limits.turns; ++turn) {
    const std::uint64_t inputs = random();
    const std::optional<double> there = alone_ms(context, stages, record, limits, inputs);
    if (!there) return std::nullopt;
    resources.session->refill_variable(inputs);
    // The first round follows a pause, unlike those that were timed.
    for (int round = 0; round <= verified_runs; ++round)
      for (const Timed& timed : samples.timed) {
        measure::Capture capture;
        const std::optional<double> here = time_of(*resources.session, resources.stopwatch->time(*timed.variant, capture));
        if (round > 0 && timed.variant == &context.pair.baseline && here) times.add(*here, *there);
      }
  }
  return times;
}

}  // namespace

void check_baseline_alone(const Context& context, const Stages& stages, Record& record, Resources& resources,
                          const Samples& samples, std::optional<double> first_ms) {
  if (context.request.own_folder.empty() || context.ranks.several()) return;
  const pair::Session& session = *resources.session;
  const Limits& limits = limits_of(session);
  const Timed& timed = samples.timed.front();
  evidence::VariantResult& baseline = *timed.result;
  const auto not_checked = [&](const std::string& why) {
    if (baseline.checks) baseline.checks->off.push_back("times of the baseline against those in a process of its own: " + why);
  };
  std::optional<double> alone = first_ms;
  double process_s = setup_s(stages);
  if (!session.on_gpu()) {
    if (const std::string why = why_not(stages, session); !why.empty()) return not_checked(why);
    const double start_s = base::monotonic_s();
    alone = alone_ms(context, stages, record, limits, base::entropy());
    process_s = base::monotonic_s() - start_s;
  }
  if (!alone) return not_checked("there it could not be timed");
  if (!longer(time_in_company(session, timed), *alone)) return;
  if (const std::string why = why_not(stages, session); !why.empty()) return not_checked("they differ, and " + why);
  if (!fits_twice(session)) return not_checked("they differ, and the GPU has no room for a second process");
  double round_s = 0;
  for (const Timed& each : samples.timed) round_s += median_of(each.samples, &measure::Sample::raw_ms) * 1e-3;
  if (limits.turns * (process_s + (verified_runs + 1) * round_s) > limits.longest_turns_s)
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
      "heap, of the process or of a kernel");
}

std::optional<double> time_baseline_first(const Context& context, Record& record, pair::Session& session) {
  const bool is_first = !context.request.cold_start && !context.ranks.several() && !context.request.own_folder.empty();
  if (!is_first || !by_events(context)) return std::nullopt;
  const Variant& baseline = context.pair.baseline;
  try {
    // A user waits for the first time.
    record.of(baseline.name).prepare_ms = session.prepare(baseline);
    return measure::median(times_ms_of(context, session, verified_runs, longest_first_s));
  } catch (const CudaError&) {
    throw;
  } catch (const std::exception&) {
    return std::nullopt;  // the verification tells what is wrong with it
  }
}

void send_baseline_times(const Context& context, Record& record, pair::Session& session) {
  const Variant& baseline = context.pair.baseline;
  const std::uint64_t inputs = context.request.seed;
  session.refill(~inputs);
  session.prepare(baseline);
  session.refill_variable(inputs);
  const std::vector<double> times_ms =
      times_ms_of(context, session, context.request.baseline_runs, std::numeric_limits<double>::infinity());
  record.send(nlohmann::json{{"baseline_ms", times_ms}}.dump());
}

}  // namespace aisp::run
