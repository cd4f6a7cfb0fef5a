// SPDX-License-Identifier: Apache-2.0
#include "run/auditor.hpp"

#include <aisp/check.hpp>

#include <vector>

#include "measure/gpu_kernels.hpp"
#include "measure/statistics.hpp"

namespace aisp::run {

AuditedRun Auditor::run(const Variant& variant) {
  const cudaStream_t stream = session_.launch().stream;
  session_.before_sample(variant);
  session_.synchronize_all();
  recorder_.start(profile::Detail::memory);
  measure::launch_sample_begin(stream);
  session_.fork();
  variant.run(session_.workload(), session_.launch());
  session_.join();
  measure::launch_sample_end(stream);
  check(cudaGetLastError());
  session_.synchronize_all();
  AuditedRun result;
  std::vector<profile::Activity> activities = recorder_.stop();
  result.host_functions = recorder_.host_functions();
  result.most_allocated_bytes = profile::most_allocated_bytes(activities);
  std::erase_if(activities, [](const profile::Activity& activity) { return activity.kind == profile::Activity::Kind::memory; });
  result.audit = profile::audit(activities, session_.gpu_ordinals());
  return result;
}

double Auditor::probe_ms(measure::Stopwatch& stopwatch) {
  constexpr int samples = 20;
  recorder_.start();
  for (int i = 0; i < samples; ++i) stopwatch.time_probe();
  std::vector<double> durations_ms;
  for (const profile::Activity& activity : recorder_.stop())
    if (activity.name.find("aisp_probe") != std::string::npos)
      durations_ms.push_back(static_cast<double>(activity.end_ns - activity.start_ns) / 1e6);
  return measure::median(durations_ms);
}

}  // namespace aisp::run
