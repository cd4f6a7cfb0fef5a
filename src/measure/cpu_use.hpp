// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace aisp::measure {

// Returns the threads of a process: "self" or a number. Empty if it is gone.
std::vector<pid_t> threads_of(const std::string& process);

// Returns the CPU time in ms of each living child process and its descendants. A running one's lags by up to a tick.
std::map<pid_t, double> living_children_ms();
// Returns the CPU time of all children that ended and were waited for, with those that they had waited for.
double ended_children_ms();

// Returns the time of a thread or child since `before_ms`: all of it if it was not there then.
double ms_since(const std::map<pid_t, double>& before_ms, pid_t id, double now_ms);

// Whether another thread of this process, or one of a child, runs or waits for a CPU.
bool others_are_runnable();

// Return the CPU time in ms of the calling thread, and of all threads of this process.
double cpu_ms_of_caller();
double cpu_ms_of_process();

// CPU time in ms that this process has used.
struct CpuUse {
  double process_ms = 0, caller_ms = 0;
  std::map<pid_t, double> threads_ms;  // the other living threads

  static CpuUse now();
  double of_thread_since(const CpuUse& before, pid_t thread) const;
  // Returns the time of all threads together that ended since `before`.
  double of_ended_since(const CpuUse& before) const;
};

// Measures how long threads of this process and of its children wait for a busy CPU, as Linux counts it
// (/proc/PID/task/TID/schedstat).
class CpuWait {
 public:
  CpuWait();  // begins
  // Returns the sum over all threads; 0 if Linux does not count it. Nothing if it is unknown: threads or children ended
  // meanwhile, so that their count is lost, on a machine with more runnable threads than CPUs.
  std::optional<double> ms() const;

 private:
  double children_ms_ = 0;
  CpuUse use_;
  std::map<pid_t, double> waited_ms_;
};

}  // namespace aisp::measure
