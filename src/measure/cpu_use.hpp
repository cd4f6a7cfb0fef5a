// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace aisp::measure {

// The threads of a process: "self" or a number. Empty when it is gone.
std::vector<pid_t> threads_of(const std::string& process);

// CPU time in ms of each child process that lives, and of theirs. That of one lags by up to a tick as long as it runs.
std::map<pid_t, double> living_children_ms();
// Returns the CPU time of all children that ended and were waited for, with those that they had waited for.
double ended_children_ms();

// CPU time in ms that this process has used.
struct CpuUse {
  double process_ms = 0, caller_ms = 0;
  std::map<pid_t, double> threads_ms;  // the other threads that live

  static CpuUse now();
  double of_thread_since(const CpuUse& before, pid_t thread) const;
  // By threads that ended since, all of them together.
  double of_ended_since(const CpuUse& before) const;
};

// How long threads of this process wait for a CPU that others have, as Linux counts it (/proc/PID/task/TID/schedstat).
class CpuWait {
 public:
  CpuWait();  // begins
  // All threads together; 0 where Linux does not count. Nothing when it cannot be told: threads or children ended meanwhile,
  // whose count is lost, on a machine on which more threads want to run than CPUs are there.
  std::optional<double> ms() const;

 private:
  double children_ms_ = 0;
  CpuUse use_;
  std::map<pid_t, double> waited_ms_;
};

}  // namespace aisp::measure
