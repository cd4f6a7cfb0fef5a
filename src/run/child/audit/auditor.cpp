// SPDX-License-Identifier: Apache-2.0
#include "run/child/audit/auditor.hpp"

#include <aisp/check.hpp>

#include <chrono>
#include <thread>

#include "measure/gpu_kernels.hpp"
#include "measure/statistics/statistics.hpp"
#include "measure/stopwatch.hpp"

namespace aisp::run {
namespace {

// In timed rounds the run follows sooner: a pair that computes ahead has begun by then.
constexpr std::chrono::milliseconds longest_answer{2};

}  // namespace

AuditedRun Auditor::run(const Variant& variant) {
  profile::Before before;
  measure::Capture capture{.digest = false};
  capture.rested = [&] { before.rested_ns = profile::ActivityRecorder::now_ns(); };
  recorder_.start(profile::Detail::memory);
  executor_.make_ready(variant, capture);
  before.ready_ns = profile::ActivityRecorder::now_ns();
  const measure::Executed executed =
      executor_.perform(variant, capture, {.begin = measure::launch_sample_begin, .end = measure::launch_sample_end});
  AuditedRun result{.run_ms = executed.run_ms, .host_ms = executed.host_ms};
  std::vector<profile::Activity> activities = recorder_.stop();
  result.host_functions = recorder_.host_functions();
  result.most_allocated_bytes = profile::most_allocated_bytes(activities);
  std::erase_if(activities, [](const profile::Activity& activity) { return activity.kind == profile::Activity::Kind::memory; });
  result.audit = profile::audit(activities, session_.gpu_ordinals(), before);
  return result;
}

std::vector<std::string> Auditor::renew(std::uint64_t inputs) {
  recorder_.start();
  session_.refill_variable(inputs);
  session_.synchronize_all();
  const std::uint64_t renewed_ns = profile::ActivityRecorder::now_ns();
  std::this_thread::sleep_for(longest_answer);
  return profile::kernels_begun(recorder_.stop(), renewed_ns);
}

int Auditor::host_functions_of_prepare(const Variant& variant) {
  if (variant.prepare == nullptr) return 0;
  recorder_.start();
  session_.prepare(variant);
  recorder_.stop();
  return recorder_.host_functions();
}

double Auditor::probe_ms(measure::Stopwatch& stopwatch) {
  constexpr int samples = 20;
  recorder_.start();
  for (int i = 0; i < samples; ++i) stopwatch.time_probe();
  std::vector<double> durations_ms;
  for (const profile::Activity& activity : recorder_.stop())
    if (activity.own && activity.name.find("aisp_probe") != std::string::npos)
      durations_ms.push_back(static_cast<double>(activity.end_ns - activity.start_ns) / 1e6);
  return measure::median(durations_ms);
}

}  // namespace aisp::run
