// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "measure/execution.hpp"
#include "pair/session.hpp"
#include "profile/audit.hpp"

namespace aisp::measure {
class Stopwatch;
}

namespace aisp::run {

struct AuditedRun {
  profile::Audit audit;
  double run_ms = 0;  // of the host in the variant's run()
  double host_ms = 0;
  int host_functions = 0;
  std::uint64_t most_allocated_bytes = 0;  // of device memory by the variant itself, beyond what there was before
};

// Executions as timed samples are executed, with CUPTI recording. Only after the timed ones: a process that was profiled once may
// be slower.
class Auditor {
 public:
  Auditor(pair::Session& session, const measure::Conditions& conditions) : session_{session}, executor_{session, conditions} {}
  // New contents for variable inputs. Returns the kernels that begin in the 2 ms behind that, on whatever stream and in whatever
  // context of the process, when nobody has asked the pair for anything.
  std::vector<std::string> renew(std::uint64_t inputs);
  // `inputs`: the seed of the present ones (measure::Capture).
  AuditedRun run(const Variant& variant, std::uint64_t inputs);
  // Prepares once more and counts the host functions that this queues or puts into graphs.
  int host_functions_of_prepare(const Variant& variant);
  // The median of the probe kernel's own durations, in the place where the stopwatch reads them.
  double probe_ms(measure::Stopwatch& stopwatch);

 private:
  pair::Session& session_;
  measure::Executor executor_;
  profile::ActivityRecorder recorder_;
};

}  // namespace aisp::run
