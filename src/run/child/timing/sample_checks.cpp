// SPDX-License-Identifier: Apache-2.0
#include "run/child/timing/pair_sampling.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "measure/execution.hpp"
#include "measure/idle_watch.hpp"
#include "measure/statistics/statistics.hpp"
#include "run/child/timing/paired_times.hpp"

namespace aisp::run {
namespace {

// CPU time that child processes may take per round outside its samples, to fall asleep and to be woken; on the host also a share
// of the shortest sample. Children of a GPU pair have nothing to do that its time would show.
constexpr double most_child_ms = 0.02, most_child_ms_on_gpu = 0.005, most_child_share = 0.1;
// Other work shorter than this is the host's own delay in polling.
constexpr double least_other_work_ms = 0.25, least_other_work_share = 0.02;
// Times on inputs that some variant has seen may be shorter by this share.
constexpr double most_shortened = 0.1;
constexpr std::size_t fewest_first = 4;
constexpr double shortest_told_ms = 0.002;
// A timed execution may take this many times as long as in verification, because of other work on the machine.
constexpr double most_beyond_verified = 2, least_beyond_verified_ms = 0.5;

std::string listed(const std::vector<std::string>& texts) { return texts.empty() ? std::string{} : texts.front(); }

void check_findings(Record& record, const Timed& timed, const verify::SampleWatch::Findings& findings) {
  timed.result->checks = findings.counts;
  if (findings.counts.wrong > 0)
    record.fail_variant(*timed.result, "timed_samples",
                        fmt::format("{} of {} timed samples were wrong: {}", findings.counts.wrong, findings.counts.compared,
                                    listed(findings.wrong)),
                        "compute everything from the inputs in every run");
  if (!findings.gate.empty())
    record.fail_variant(*timed.result, "gate",
                        fmt::format("outputs were written while launch.stream was held back ({})", listed(findings.gate)),
                        "fork other streams from launch.stream with events; do the work on the GPU, not in run()");
}

// Judges by the lower quartile: on a busy machine a thread that goes to sleep may be seen at work now and then.
void check_idle(Record& record, const Timed& timed, std::vector<double> idle_cpu_ms) {
  if (idle_cpu_ms.empty()) return;
  std::ranges::sort(idle_cpu_ms);
  const double worked_ms = measure::percentile(idle_cpu_ms, 25);
  if (worked_ms <= measure::IdleWatch::most_spinning_ms) return;
  record.fail_variant(
      *timed.result, "background_work",
      fmt::format("a thread or child worked for {:.3g} ms between samples, when the pair should have been idle", worked_ms),
      std::string{"let threads of the pair wait between runs"} + measure::who_spins);
}

// Compares with the longest execution of the verification, which were like the timed ones, and colder; on the host with their
// median, since any one may take long on a busy machine. CPU time of other programs does not count: executions that they
// disturbed are left out there, and timed ones are reduced by the time their threads waited for a CPU.
void compare_with_verified(const Context& context, Record& record, const Timed& timed,
                           const std::vector<verify::Outcome>& outcomes) {
  const auto outcome = std::ranges::find(outcomes, timed.variant->name, &verify::Outcome::variant);
  if (outcome == outcomes.end() || context.request.mode == TimingMode::timer) return;
  if (outcome->undisturbed_ms.empty()) {
    if (timed.result->checks) timed.result->checks->off.emplace_back(evidence::busy_when_verified);
    return;
  }
  const double timed_ms = measure::own_host_ms(timed.samples);
  const double verified_ms =
      context.pair.device == Device::host ? measure::median(outcome->undisturbed_ms) : std::ranges::max(outcome->undisturbed_ms);
  if (timed_ms <= most_beyond_verified * verified_ms + least_beyond_verified_ms) return;
  record.fail_variant(*timed.result, "timed_differently",
                      fmt::format("timed as {:.4g} ms, but {:.4g} ms when it was verified", timed_ms, verified_ms),
                      "do the same work in every run");
}

// Before samples that are watched everything is idle, as in verification: a baseline that is faster there is slow only where
// nobody verifies.
void check_unwatched(Record& record, const Timed& baseline) {
  const PairedTimes times = beside_watched(baseline.samples);
  if (!times.enough()) {
    if (baseline.result->checks)
      baseline.result->checks->off.emplace_back("times of the baseline against those after a pause: too few rounds");
    return;
  }
  if (!times.longer_here()) return;
  record.fail_variant(*baseline.result, "timed_differently",
                      fmt::format("{:.4g} ms, but {:.4g} ms in samples before which all was idle, as in verification",
                                  measure::median(times.here_ms), measure::median(times.there_ms)),
                      "do the same work in every run");
}

void check_other_work(Record& record, const Timed& timed) {
  const double median_ms = median_of(timed.samples, &measure::Sample::raw_ms);
  const auto much = [&](double milliseconds) {
    return milliseconds > least_other_work_ms && milliseconds > least_other_work_share * median_ms;
  };
  if (const double late_ms = median_of(timed.samples, &measure::Sample::late_ms); much(late_ms))
    record.fail_variant(*timed.result, "late_work",
                        fmt::format("the GPU worked on for {:.3g} ms after the end of the sample", late_ms),
                        "join other streams to launch.stream with events");
  if (const double early_ms = median_of(timed.samples, &measure::Sample::early_ms); much(early_ms))
    record.fail_variant(*timed.result, "early_work", fmt::format("the GPU was at work for {:.3g} ms before the sample", early_ms),
                        "start nothing before run(), and join other streams to launch.stream with events");
}

void check_remembered(Record& record, const Timed& timed, std::vector<double> first_ms, std::vector<double> later_ms) {
  if (first_ms.size() < fewest_first || later_ms.size() < fewest_first) return;
  const double first = measure::median(first_ms), later = measure::median(later_ms);
  // Nearly all later samples must be faster than nearly all first ones: one slow group is no proof.
  std::ranges::sort(first_ms);
  std::ranges::sort(later_ms);
  const bool apart = measure::percentile(later_ms, 75) < measure::percentile(first_ms, 25);
  if (later >= (1 - most_shortened) * first || first - later < shortest_told_ms || !apart) return;
  record.fail_variant(
      *timed.result, "timed_differently",
      fmt::format("{:.4g} ms on new inputs, {:.4g} ms on inputs that were there before: something is remembered", first, later),
      "compute everything from the inputs in every run");
}

// Finds what medians do not show: a variant that takes over what another has computed in a part of the rounds only.
void check_taken_over(Record& record, const Timed& timed, const std::vector<double>& first_ms,
                      const std::vector<double>& later_ms) {
  if (!taken_over(first_ms, later_ms)) return;
  record.fail_variant(
      *timed.result, "timed_differently",
      fmt::format("{:.4g} ms in the mean on inputs that it meets first, {:.4g} ms where another variant has run on "
                  "them: something is taken over from it",
                  measure::trimmed_mean(first_ms), measure::trimmed_mean(later_ms)),
      "compute everything from the inputs in every run");
}

void check_first_on_inputs(Record& record, const Timed& timed) {
  std::vector<double> first_ms, after_others_ms, own_new_ms, again_ms;
  for (const measure::Sample& sample : timed.samples) {
    (sample.again_on_inputs ? again_ms : own_new_ms).push_back(sample.raw_ms);
    if (!sample.again_on_inputs) (sample.first_on_inputs ? first_ms : after_others_ms).push_back(sample.raw_ms);
  }
  check_remembered(record, timed, first_ms, after_others_ms);
  if (timed.result->status == evidence::Status::passed) check_taken_over(record, timed, first_ms, after_others_ms);
  if (timed.result->status == evidence::Status::passed) check_remembered(record, timed, own_new_ms, again_ms);
}

// Returns why times on repeated inputs are no evidence that a variant remembers results, as when the host's caches make every
// variant faster on inputs it has seen; empty if they are.
std::string why_repeats_tell_nothing(const pair::Session& session, Start start) {
  if (by_host_memory(session)) return "a buffer lies in host memory, which the host's caches make faster";
  return start == Start::immediate ? "the host's work is part of the time" : "";
}

}  // namespace

double median_of(const std::vector<measure::Sample>& samples, double measure::Sample::*value) {
  if (samples.empty()) return 0;
  std::vector<double> values;
  for (const measure::Sample& sample : samples) values.push_back(sample.*value);
  return measure::median(values);
}

bool by_host_memory(const pair::Session& session) {
  return std::ranges::any_of(session.buffers(), [](const Buffer& buffer) { return !pair::on_device(buffer); });
}

void check_children(const Context& context, Record& record, const std::vector<Timed>& timed, double outside_ms) {
  // In another program's process the children are not the pair's.
  if (!context.request.own_process || timed.empty() || timed.front().samples.empty()) return;
  double shortest_ms = INFINITY;
  for (const Timed& each : timed) shortest_ms = std::min(shortest_ms, median_of(each.samples, &measure::Sample::raw_ms));
  const bool on_gpu = context.pair.device == Device::gpu;
  const double most_ms = on_gpu ? most_child_ms_on_gpu : std::max(most_child_ms, most_child_share * shortest_ms);
  const double worked_ms = outside_ms / static_cast<double>(timed.front().samples.size());
  if (worked_ms <= most_ms) return;
  record.problem({}, "child_work",
                 fmt::format("child processes worked for {:.3g} ms of CPU time in each round outside of its samples", worked_ms),
                 "let child processes sleep between runs; start those of one-time work in the constructor or in prepare");
}

void check_samples(const Context& context, Record& record, const pair::Session& session, const Verified& verified,
                   const std::vector<Timed>& timed, const verify::SampleWatch& watch) {
  const std::string obstacle = why_repeats_tell_nothing(session, verified.start);
  for (std::size_t v = 0; v < timed.size(); ++v) {
    const verify::SampleWatch::Findings& findings = watch.of(v);
    check_findings(record, timed[v], findings);
    check_idle(record, timed[v], findings.idle_cpu_ms);
    compare_with_verified(context, record, timed[v], verified.outcomes);
    check_other_work(record, timed[v]);
    if (!session.on_gpu()) {
      if (v == 0) check_unwatched(record, timed[v]);
      continue;
    }
    if (findings.looks_without_end > 0)
      timed[v].result->checks->off.emplace_back("outputs while the stream was held back: a look at them waited for that stream");
    if (obstacle.empty()) check_first_on_inputs(record, timed[v]);
    else timed[v].result->checks->off.push_back("times on inputs seen before against times on others: " + obstacle);
  }
}

}  // namespace aisp::run
