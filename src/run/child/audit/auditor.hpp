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
  double run_ms = 0;  // host time in the variant's run()
  double host_ms = 0;
  int host_functions = 0;
  std::uint64_t most_allocated_bytes = 0;  // device memory that the variant itself allocated at most
};

// Executes like timed samples, with CUPTI recording. Use it only after the timed ones: a process that was profiled once may be
// slower.
class Auditor {
 public:
  Auditor(pair::Session& session, const measure::Conditions& conditions) : session_{session}, executor_{session, conditions} {}
  pair::RankGroup& ranks() { return session_.rank_group(); }
  // Renews variable inputs. Returns the kernels that begin in the following 2 ms, on any stream and in any context of the
  // process, while the pair has nothing to do.
  std::vector<std::string> renew(std::uint64_t inputs);
  AuditedRun run(const Variant& variant);
  // Prepares again and counts the host functions that this queues or adds to graphs.
  int host_functions_of_prepare(const Variant& variant);
  // Returns the median of the probe kernel's own durations, in the place where the stopwatch reads them.
  double probe_ms(measure::Stopwatch& stopwatch);

 private:
  pair::Session& session_;
  measure::Executor executor_;
  profile::ActivityRecorder recorder_;
};

}  // namespace aisp::run
