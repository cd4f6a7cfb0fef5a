// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <chrono>
#include <map>

namespace aisp::measure {

// How much the others work while the calling thread has nothing for them to do: other threads of the process, and child processes.
// Clocks of threads and processes are exact to the nanosecond, where accounts in /proc are as old as the last tick.
class IdleWatch {
 public:
  // Workers that wait for their next call spin before they sleep; 4000 pauses with a contended cache line, the longest that a
  // team here spins, are 0.3 to 0.7 ms of its CPU.
  static constexpr double most_spinning_ms = 1;

  IdleWatch();  // begins
  // CPU time in ms of the one thread or child that worked most since the beginning, at least 4 ms ago: the call sleeps until then.
  // Threads that ended meanwhile count as one.
  double busiest_ms() const;

 private:
  struct Used {
    double process_ms = 0, caller_ms = 0;
    std::map<pid_t, double> threads_ms, children_ms;
  };
  static Used used();

  Used before_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace aisp::measure
