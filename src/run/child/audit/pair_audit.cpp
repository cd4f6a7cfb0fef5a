// SPDX-License-Identifier: Apache-2.0
// Audits executions like the timed ones, with CUPTI recording.
#include "run/child/audit/pair_audit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "measure/statistics/statistics.hpp"
#include "profile/activity.hpp"
#include "profile/ranges.hpp"
#include "run/child/audit/auditor.hpp"
#include "run/child/audit/known_inputs.hpp"
#include "run/child/audit/timed_difference.hpp"
#include "run/child/audit/timeline_metrics.hpp"
#include "run/child/context.hpp"
#include "run/child/timing/pair_sampling.hpp"
#include "run/child/verification/memory_account.hpp"

namespace aisp::run {
namespace {

constexpr int audited_rounds = 5;
// Limits for the time of the host in run().
constexpr double least_run_ms = 0.5, launch_ms = 0.03;
constexpr double longest_prepare_ms = 3000;

std::string beyond_limits(const profile::CompiledKernel& kernel, const KernelLimits& limits) {
  const auto local = static_cast<std::int64_t>(kernel.local_bytes);
  if (limits.registers > 0 && kernel.registers > limits.registers)
    return fmt::format("{} takes {} registers a thread, and .kernels allows {}", kernel.name, kernel.registers, limits.registers);
  if (limits.local_bytes >= 0 && local > limits.local_bytes)
    return fmt::format("{} takes {} bytes of local memory a thread, and .kernels allows {}", kernel.name, local,
                       limits.local_bytes);
  if (local < limits.local_at_least)
    return fmt::format("{} takes {} bytes of local memory a thread, and .kernels says that it takes at least {}", kernel.name,
                       local, limits.local_at_least);
  return {};
}

void check_prepare(Record& record, Auditor& auditor, const Timed& timed) {
  if (auditor.ranks().any("a long prepare()", timed.result->prepare_ms > longest_prepare_ms)) return;
  const int functions = auditor.host_functions_of_prepare(*timed.variant);
  if (functions > 0 && !timed.variant->host_callbacks)
    record.fail_variant(*timed.result, "hidden_work", fmt::format("prepare() queued {} host functions", functions),
                        "set .host_callbacks where the CPU's part is the subject");
}

// A finding in one execution may be the profiler's own; in most of them it is the variant's.
void check_findings(Record& record, const Timed& timed, const std::vector<AuditedRun>& runs) {
  std::vector<const AuditedRun*> found;
  for (const AuditedRun& run : runs)
    if (!run.audit.findings.empty()) found.push_back(&run);
  if (2 * found.size() <= runs.size()) return;
  const std::vector<std::string>& findings = found.front()->audit.findings;
  record.fail_variant(*timed.result, "hidden_work",
                      findings.front() + (findings.size() > 1 ? fmt::format(" (and {} more findings)", findings.size() - 1) : ""),
                      "join other streams to launch.stream with events");
}

// Returns the host time of timed samples; under CUPTI a thread's first calls take longer. The timer reads blocks of runs.
double run_ms_of(const Timed& timed, const Medians& audited, TimingMode mode) {
  return mode == TimingMode::timer ? audited.run_ms : median_of(timed.samples, &measure::Sample::run_ms);
}

// A launch takes the host microseconds; longer work is hidden from every clock while the stream is held back.
void check_host_work(Record& record, const Timed& timed, const Medians& medians, const TimedComparison& with,
                     int host_functions) {
  if (timed.variant->host_callbacks) return;
  const double run_ms = run_ms_of(timed, medians, with.mode), for_launches_ms = least_run_ms + launch_ms * medians.calls;
  if (with.start == Start::released && run_ms > for_launches_ms && run_ms > medians.span_ms)
    record.fail_variant(
        *timed.result, "hidden_work",
        fmt::format("run() took the host {:.3g} ms, more than its launches need ({:.3g} ms)", run_ms, for_launches_ms),
        "set .start = Start::immediate where the host's work is part of the variant");
  if (host_functions > 0)
    record.fail_variant(*timed.result, "hidden_work", fmt::format("{} host functions were queued", host_functions),
                        "set .host_callbacks where the CPU's part is the subject");
}

// A template's or a library's kernels can be many.
void note_kernels(Record& record, const Timed& timed, std::vector<profile::CompiledKernel> kernels) {
  constexpr std::size_t most_kernels = 16;
  const KernelLimits& limits = timed.variant->kernels;
  for (const profile::CompiledKernel& kernel : kernels)
    if (const std::string text = beyond_limits(kernel, limits); !text.empty())
      record.fail_variant(*timed.result, "compiled_kernels", text, "change the kernel, or .kernels of the variant");
  std::ranges::stable_sort(kernels, std::ranges::greater{}, &profile::CompiledKernel::registers);
  for (std::size_t i = 0; i < std::min(kernels.size(), most_kernels); ++i)
    timed.result->kernels.push_back({kernels[i].name, kernels[i].registers, kernels[i].local_bytes});
}

// Compares executions on the inputs of timed rounds with the samples on those inputs: a variant's time may depend on its data.
bool agrees_on_timed_inputs(Auditor& auditor, const Timed& timed, const TimedComparison& with, base::OneWayRandom& random) {
  const std::vector<std::uint64_t> inputs = timed_inputs(timed, with.constants_since_round, audited_rounds, random);
  if (inputs.empty()) return false;
  std::vector<AuditedRun> runs;
  for (const std::uint64_t seed : inputs) {
    auditor.renew(seed);
    const profile::Scope range{timed.result->name};
    runs.push_back(auditor.run(*timed.variant));
  }
  return took_as_timed(timed, inputs, medians_of(runs), with);
}

// Returns why audited executions take longer than timed ones; empty if they do not.
std::string why_times_differ(const Timed& timed, const TimedComparison& with) {
  if (with.mode == TimingMode::timer) return "the timer reads blocks of runs";
  if (with.by_host_memory) return "a buffer lies in host memory, whose accesses CUPTI makes longer";
  return timed.variant->host_callbacks ? "host functions are part of the run" : "";
}

// Audited executions are like the timed ones, so their durations must agree.
void compare_with_timed(Record& record, Auditor& auditor, const Timed& timed, const Medians& medians, const TimedComparison& with,
                        base::OneWayRandom& random) {
  if (const std::string obstacle = why_times_differ(timed, with); !obstacle.empty()) {
    if (timed.result->checks)
      timed.result->checks->off.push_back("the time of an execution that CUPTI recorded against the timed ones: " + obstacle);
    return;
  }
  const std::optional<TimedDifference> found =
      difference(*timed.variant, medians, median_of(timed.samples, &measure::Sample::raw_ms), with);
  if (!auditor.ranks().any("a difference to timed samples", found.has_value())) return;
  if (agrees_on_timed_inputs(auditor, timed, with, random) || !found) return;
  record.fail_variant(*timed.result, "timed_differently", found->message, found->advice);
}

// The timer reads blocks of runs, so its samples are not the span of one run.
void note_timeline(const Request& request, const Timed& timed, const std::vector<AuditedRun>& runs, const TimedComparison& with) {
  const double timed_ms =
      with.mode == TimingMode::timer ? 0 : median_of(timed.samples, &measure::Sample::raw_ms) - with.offset_ms;
  for (evidence::Metric& metric : timeline_metrics(runs, timed_ms, request.percentiles))
    timed.result->metrics.push_back(std::move(metric));
}

void judge_audit(Record& record, Auditor& auditor, const Timed& timed, const std::vector<AuditedRun>& runs,
                 const TimedComparison& with, base::OneWayRandom& random) {
  const Medians medians = medians_of(runs);
  for (const AuditedRun& run : runs) add_own_allocations(timed.result->memory, run.most_allocated_bytes);
  timed.result->gpu_busy_ms = medians.busy_ms;
  check_findings(record, timed, runs);
  check_host_work(record, timed, medians, with, runs.front().host_functions);
  note_kernels(record, timed, runs.front().audit.compiled);
  compare_with_timed(record, auditor, timed, medians, with, random);
}

// A finding in one renewal may be the profiler's own, as with those of a run.
void check_renewals(Record& record, const std::vector<std::string>& begun) {
  if (2 * begun.size() <= audited_rounds) return;
  record.problem({}, "early_work",
                 fmt::format("the kernel {} began when inputs had changed, before any run ({} of {} times)", begun.front(),
                             begun.size(), audited_rounds),
                 "do all work in the run, on launch.stream");
}

// One list a variant, in the order of `timed`.
std::vector<std::vector<AuditedRun>> run_audited(Auditor& auditor, Record& record, const std::vector<Timed>& timed,
                                                 std::uint64_t seed) {
  std::vector<std::vector<AuditedRun>> runs(timed.size());
  std::vector<std::string> begun;  // one kernel of each round that had any
  base::OneWayRandom random{base::OneWay{seed}(stream_of_audit)};
  for (int round = 0; round < audited_rounds; ++round) {
    const std::uint64_t inputs = random();
    if (const std::vector<std::string> kernels = auditor.renew(inputs); !kernels.empty()) begun.push_back(kernels.front());
    for (std::size_t v = 0; v < timed.size(); ++v) {
      const profile::Scope range{timed[v].result->name};
      runs[v].push_back(auditor.run(*timed[v].variant));
    }
  }
  check_renewals(record, begun);
  return runs;
}

}  // namespace

ProbeWork audit(const Context& context, Record& record, Resources& resources, Start start, const Samples& samples,
                const ProbeWork& assumed) {
  pair::Session& session = *resources.session;
  if (!session.on_gpu()) {
    // Each rank decides by its own samples, and ranks execute together.
    if (!context.ranks.several())
      check_known_inputs(context, record, session, {.start = start, .cache = context.pair.cache}, samples);
    return assumed;
  }
  const std::optional<std::string>& reason = profile::ActivityRecorder::unavailable();
  if (context.ranks.any("CUPTI", reason.has_value())) {
    record.lose(evidence::LostKind::cupti,
                "no CUPTI, so hidden work is sought by its effects only: " + reason.value_or("another rank has none"));
    return assumed;
  }
  if (context.request.mode == TimingMode::kernel) resources.stopwatch.reset();  // it records, and only one recorder can exist
  Auditor auditor{session, {.start = start, .cache = context.pair.cache}};
  ProbeWork work = assumed;
  if (assumed.ms > 0) work = {.ms = auditor.probe_ms(*resources.stopwatch), .measured = true};
  for (const Timed& timed : samples.timed) check_prepare(record, auditor, timed);
  const std::vector<std::vector<AuditedRun>> runs = run_audited(auditor, record, samples.timed, context.timed_seed);
  const TimedComparison with{.mode = context.request.mode,
                             .start = start,
                             .offset_ms = samples.known_offset_ms,
                             .one_gpu = session.gpu_ordinals().size() == 1,
                             .by_host_memory = by_host_memory(session),
                             .constants_since_round = samples.constants_since_round};
  base::OneWayRandom random{base::OneWay{context.timed_seed}(stream_of_timed_inputs)};
  for (std::size_t v = 0; v < samples.timed.size(); ++v) {
    judge_audit(record, auditor, samples.timed[v], runs[v], with, random);
    if (context.pair.timeline) note_timeline(context.request, samples.timed[v], runs[v], with);
    if (!profile::ActivityRecorder::tells_own() && samples.timed[v].result->checks)
      samples.timed[v].result->checks->off.emplace_back(
          "kernels with names of the harness's own: CUPTI does not tell who launched them");
  }
  return work;
}

}  // namespace aisp::run
