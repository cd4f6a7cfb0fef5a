// SPDX-License-Identifier: Apache-2.0
// What timed samples showed besides their times, and executions like them with CUPTI recording.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <random>

#include "measure/idle_watch.hpp"
#include "measure/statistics/statistics.hpp"
#include "profile/activity.hpp"
#include "run/child/auditor.hpp"
#include "run/child/memory_account.hpp"
#include "run/child/pair_run.hpp"

namespace aisp::run {
namespace {

// Other work shorter than this is the host's own delay in asking.
constexpr double least_other_work_ms = 0.25, least_other_work_share = 0.02;
// A time on inputs that some variant had seen may be shorter by this share.
constexpr double most_shortened = 0.1;
constexpr std::size_t fewest_first = 4;
constexpr double shortest_told_ms = 0.002;
constexpr int audited_rounds = 5;
// Of the audit and the timed rounds, which have other pauses, and so another clock on a chip at its power cap.
constexpr double other_pace = 0.2;
// What CUPTI takes beside a sample, at most.
constexpr double audit_slack_ms = 0.003;
// And for each kernel where they are short: it keeps those from overlapping that are independent, as the branches of a graph are.
// 320 kernels of 0.7 us in 16 branches took 1.4 to 2.5 us each under CUPTI.
constexpr double audit_kernel_slack_ms = 0.002, short_kernel_ms = 0.003;
// Of the host in run(), beside CUPTI.
constexpr double least_run_ms = 0.5, launch_ms = 0.03;
constexpr double longest_prepare_ms = 3000;
// How much longer than in verification a timed execution may take: other work on the machine.
constexpr double most_beyond_verified = 2, least_beyond_verified_ms = 0.5;

double median_of(const std::vector<measure::Sample>& samples, double measure::Sample::*value) {
  if (samples.empty()) return 0;
  std::vector<double> values;
  for (const measure::Sample& sample : samples) values.push_back(sample.*value);
  return measure::median(values);
}

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

std::string listed(const std::vector<std::string>& texts) { return texts.empty() ? std::string{} : texts.front(); }

}  // namespace

void PairRun::note_limits(std::size_t index) {
  const std::vector<std::string>& changed = stopwatch_->executor().changed_limits();
  if (changed.empty() || !limits_told_.insert(index).second) return;
  fail_variant(*timed_[index].result, "limits", "a timed run changed " + changed.front() + " and left it so",
               "set it in the constructor, or put it back in the run");
}

// A library's variant that fails is left out; one of the pair's own costs the pair its result.
void PairRun::fail_variant(evidence::VariantResult& variant, const std::string& check, std::string message, std::string advice) {
  variant.status = evidence::Status::failed;
  variant.reason = message;
  if (variant.role == evidence::VariantRole::library) return leave_out(variant, message);
  problem(variant.name, check, std::move(message), std::move(advice));
}

void PairRun::check_samples() {
  const double least_share = least_other_work_share;
  for (std::size_t v = 0; v < timed_.size(); ++v) {
    const Timed& timed = timed_[v];
    const verify::SampleWatch::Findings& findings = watch_->of(v);
    timed.result->checks = findings.counts;
    if (findings.counts.wrong > 0)
      fail_variant(*timed.result, "timed_samples",
                   fmt::format("{} of {} timed samples were wrong: {}", findings.counts.wrong, findings.counts.compared,
                               listed(findings.wrong)),
                   "compute everything from the inputs in every run");
    if (!findings.gate.empty())
      fail_variant(*timed.result, "gate",
                   fmt::format("outputs were written while launch.stream was held back ({})", listed(findings.gate)),
                   "fork other streams from launch.stream with events; do the work on the GPU, not in run()");
    check_idle(timed, findings.idle_cpu_ms);
    const double median_ms = median_of(timed.samples, &measure::Sample::raw_ms);
    compare_with_verified(timed);
    const auto much = [&](double milliseconds) {
      return milliseconds > least_other_work_ms && milliseconds > least_share * median_ms;
    };
    if (const double late_ms = median_of(timed.samples, &measure::Sample::late_ms); much(late_ms))
      fail_variant(*timed.result, "late_work",
                   fmt::format("the GPU worked on for {:.3g} ms after the end of the sample", late_ms),
                   "join other streams to launch.stream with events");
    if (const double early_ms = median_of(timed.samples, &measure::Sample::early_ms); much(early_ms))
      fail_variant(*timed.result, "early_work", fmt::format("the GPU was at work for {:.3g} ms before the sample", early_ms),
                   "start nothing before run(), and join other streams to launch.stream with events");
    check_first_on_inputs(timed);
  }
}

// The lower quartile: on a busy machine a thread that goes to sleep may be seen at work now and then.
void PairRun::check_idle(const Timed& timed, std::vector<double> idle_cpu_ms) {
  if (idle_cpu_ms.empty()) return;
  std::ranges::sort(idle_cpu_ms);
  const double worked_ms = measure::percentile(idle_cpu_ms, 25);
  if (worked_ms <= measure::IdleWatch::most_spinning_ms) return;
  fail_variant(
      *timed.result, "background_work",
      fmt::format("a thread or child worked for {:.3g} ms between samples, when the pair should have been idle", worked_ms),
      "let threads of the pair wait between runs");
}

// The executions of the verification were like the timed ones, and colder. Where other programs took the CPUs, neither those nor
// these tell how long it takes.
void PairRun::compare_with_verified(const Timed& timed) {
  const auto outcome = std::ranges::find(outcomes_, timed.variant->name, &verify::Outcome::variant);
  if (outcome == outcomes_.end() || outcome->longest_ms <= 0 || request_.mode == TimingMode::timer) return;
  std::vector<double> undisturbed_ms;
  for (const measure::Sample& sample : timed.samples)
    if (sample.undisturbed) undisturbed_ms.push_back(sample.host_ms);
  const double timed_ms = undisturbed_ms.empty() ? 0 : measure::median_in_place(undisturbed_ms);
  if (timed_ms <= most_beyond_verified * outcome->longest_ms + least_beyond_verified_ms) return;
  fail_variant(*timed.result, "timed_differently",
               fmt::format("timed as {:.4g} ms, but {:.4g} ms at most when it was verified", timed_ms, outcome->longest_ms),
               "do the same work in every run");
}

bool PairRun::by_host_memory() const {
  return std::ranges::any_of(session_->buffers(), [](const Buffer& buffer) { return !pair::on_device(buffer); });
}

// Whoever remembers results is faster on inputs that it, or another variant, has seen. Where the host's caches have a say
// everybody is.
void PairRun::check_first_on_inputs(const Timed& timed) {
  if (!session_->on_gpu() || start_ != Start::released || by_host_memory()) return;
  std::vector<double> first_ms, after_others_ms, own_new_ms, again_ms;
  for (const measure::Sample& sample : timed.samples) {
    (sample.again_on_inputs ? again_ms : own_new_ms).push_back(sample.raw_ms);
    if (!sample.again_on_inputs) (sample.first_on_inputs ? first_ms : after_others_ms).push_back(sample.raw_ms);
  }
  check_remembered(timed, first_ms, after_others_ms);
  if (timed.result->status == evidence::Status::passed) check_remembered(timed, own_new_ms, again_ms);
}

void PairRun::check_remembered(const Timed& timed, std::vector<double> first_ms, std::vector<double> later_ms) {
  if (first_ms.size() < fewest_first || later_ms.size() < fewest_first) return;
  const double first = measure::median(first_ms), later = measure::median(later_ms);
  // All but a few of the later ones must be faster than all but a few of the first: one slow group is no proof.
  std::ranges::sort(first_ms);
  std::ranges::sort(later_ms);
  const bool apart = measure::percentile(later_ms, 75) < measure::percentile(first_ms, 25);
  if (later >= (1 - most_shortened) * first || first - later < shortest_told_ms || !apart) return;
  fail_variant(
      *timed.result, "timed_differently",
      fmt::format("{:.4g} ms on new inputs, {:.4g} ms on inputs that were there before: something is remembered", first, later),
      "compute everything from the inputs in every run");
}

void PairRun::audit() {
  if (!session_->on_gpu()) return;
  if (const auto& reason = profile::ActivityRecorder::unavailable()) {
    result_.lost.push_back({evidence::LostKind::cupti, "no CUPTI, so hidden work is sought by its effects only: " + *reason});
    return;
  }
  if (request_.mode == TimingMode::kernel) stopwatch_.reset();  // it records, and there is one recorder
  Auditor auditor{*session_, {.start = start_, .cache = pair_.cache}};
  if (probe_duration_ms_ > 0) {
    probe_duration_ms_ = auditor.probe_ms(*stopwatch_);
    probe_measured_ = true;
  }
  for (const Timed& timed : timed_) {
    if (result_of(timed.variant->name).prepare_ms > longest_prepare_ms) continue;
    const int functions = auditor.host_functions_of_prepare(*timed.variant);
    if (functions > 0 && !timed.variant->host_callbacks)
      fail_variant(*timed.result, "hidden_work", fmt::format("prepare() queued {} host functions", functions),
                   "set .host_callbacks where the CPU's part is the subject");
  }
  std::vector<std::vector<AuditedRun>> runs(timed_.size());
  std::mt19937_64 random{random_bits(result_.seed, 0xA0D17)};
  for (int round = 0; round < audited_rounds; ++round) {
    const std::uint64_t inputs = random();
    session_->refill_variable(inputs);
    for (std::size_t v = 0; v < timed_.size(); ++v) {
      const profile::Scope range{timed_[v].result->name};
      runs[v].push_back(auditor.run(*timed_[v].variant, inputs));
    }
  }
  for (std::size_t v = 0; v < timed_.size(); ++v) judge_audit(timed_[v], runs[v]);
}

void PairRun::judge_audit(const Timed& timed, const std::vector<AuditedRun>& runs) {
  evidence::VariantResult& variant = *timed.result;
  std::vector<double> busy_ms, span_ms, host_ms;
  for (const AuditedRun& run : runs) {
    busy_ms.push_back(static_cast<double>(run.audit.busy_ns) * 1e-6);
    span_ms.push_back(static_cast<double>(run.audit.span_ns) * 1e-6);
    host_ms.push_back(run.host_ms);
    add_own_allocations(variant.memory, run.most_allocated_bytes);
  }
  variant.gpu_busy_ms = measure::median(busy_ms);
  // One finding of several may be the profiler's own; in most of them it is the variant's.
  std::vector<const AuditedRun*> found;
  for (const AuditedRun& run : runs)
    if (!run.audit.findings.empty()) found.push_back(&run);
  if (2 * found.size() > runs.size()) {
    const std::vector<std::string>& findings = found.front()->audit.findings;
    fail_variant(variant, "hidden_work",
                 findings.front() + (findings.size() > 1 ? fmt::format(" (and {} more findings)", findings.size() - 1) : ""),
                 "join other streams to launch.stream with events");
  }
  // Launches take the host microseconds each; what takes it longer is work that no clock sees while the stream is held back.
  std::vector<double> run_ms, calls;
  for (const AuditedRun& run : runs) {
    run_ms.push_back(run.run_ms);
    calls.push_back(static_cast<double>(run.audit.kernels + run.audit.copies));
  }
  const double host_run_ms = measure::median(run_ms), for_launches_ms = least_run_ms + launch_ms * measure::median(calls);
  if (start_ == Start::released && !timed.variant->host_callbacks && host_run_ms > for_launches_ms &&
      host_run_ms > measure::median(span_ms))
    fail_variant(
        variant, "hidden_work",
        fmt::format("run() took the host {:.3g} ms, more than its launches need ({:.3g} ms)", host_run_ms, for_launches_ms),
        "set .start = Start::immediate where the host's work is part of the variant");
  if (runs.front().host_functions > 0 && !timed.variant->host_callbacks)
    fail_variant(variant, "hidden_work", fmt::format("{} host functions were queued", runs.front().host_functions),
                 "set .host_callbacks where the CPU's part is the subject");
  note_kernels(timed, runs.front().audit.compiled);
  const double kernels = measure::median(calls);
  const bool short_ones = measure::median(busy_ms) <= kernels * short_kernel_ms;
  const double slack_ms = audit_slack_ms + (short_ones ? audit_kernel_slack_ms * std::max(0.0, kernels - 1) : 0);
  compare_with_timed(timed, measure::median(busy_ms), measure::median(span_ms), measure::median(host_ms), slack_ms);
}

// A template's or a library's kernels can be many.
void PairRun::note_kernels(const Timed& timed, std::vector<profile::CompiledKernel> kernels) {
  constexpr std::size_t most_kernels = 16;
  const KernelLimits& limits = timed.variant->kernels;
  for (const profile::CompiledKernel& kernel : kernels)
    if (const std::string text = beyond_limits(kernel, limits); !text.empty())
      fail_variant(*timed.result, "compiled_kernels", text, "change the kernel, or .kernels of the variant");
  std::ranges::stable_sort(kernels, std::ranges::greater{}, &profile::CompiledKernel::registers);
  for (std::size_t i = 0; i < std::min(kernels.size(), most_kernels); ++i)
    timed.result->kernels.push_back({kernels[i].name, kernels[i].registers, kernels[i].local_bytes});
}

// The audited executions are like the timed ones, so what they took must be what was timed.
void PairRun::compare_with_timed(const Timed& timed, double busy_ms, double span_ms, double host_ms, double slack_ms) {
  if (request_.mode == TimingMode::timer) return;
  std::vector<double> raw_ms;
  for (const measure::Sample& sample : timed.samples) raw_ms.push_back(sample.raw_ms);
  const double timed_ms = std::max(0.0, measure::median(raw_ms) - offset_ms_);
  const bool one_gpu = session_->gpu_ordinals().size() == 1;
  // Pages that migrate and memory of the host take another time under CUPTI, and a callback's time is no GPU's.
  if (by_host_memory() || timed.variant->host_callbacks) return;
  if (busy_ms > (1 + other_pace) * timed_ms + slack_ms && one_gpu)
    return fail_variant(
        *timed.result, "timed_differently",
        fmt::format("the GPU was busy for {:.4g} ms in an execution that was timed as {:.4g} ms", busy_ms, timed_ms),
        "do all work between the start and the end of launch.stream's");
  // A control without outputs may be slower when timed: nobody verifies that it does the same twice, and no work is left out of
  // its time.
  if (timed.variant->outputs == no_outputs) return;
  // From an immediate start CUPTI makes the host's calls longer, so only a time that it did not reach tells.
  const bool released = start_ == Start::released;
  const double audited_ms = released ? span_ms : host_ms;
  const double least_ms = (1 + (released ? other_pace : 1)) * audited_ms + (released ? audit_slack_ms : 0.05);
  if (timed_ms > least_ms)
    fail_variant(*timed.result, "timed_differently",
                 fmt::format("timed as {:.4g} ms, but an execution like it took {:.4g} ms afterwards", timed_ms, audited_ms),
                 "do the same work in every run");
}

}  // namespace aisp::run
