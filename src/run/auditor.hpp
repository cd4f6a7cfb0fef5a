// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "measure/stopwatch.hpp"
#include "pair/session.hpp"
#include "profile/audit.hpp"

namespace aisp::run {

struct AuditedRun {
  profile::Audit audit;
  int host_functions = 0;
  std::uint64_t most_allocated_bytes = 0;  // of device memory by the variant itself, beyond what there was before
};

// Untimed executions under CUPTI. Only after the timed ones: a process that was profiled once may be slower.
class Auditor {
 public:
  explicit Auditor(pair::Session& session) : session_{session} {}
  AuditedRun run(const Variant& variant);
  // The median of the probe kernel's own durations, in the place where the stopwatch reads them.
  double probe_ms(measure::Stopwatch& stopwatch);

 private:
  pair::Session& session_;
  profile::ActivityRecorder recorder_;
};

}  // namespace aisp::run
