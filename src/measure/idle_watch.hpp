// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <chrono>
#include <map>

namespace aisp::measure {

// How much the others work while the calling thread has nothing for them to do: other threads of the process, and child
// processes.
class IdleWatch {
 public:
  // Workers that wait for their next call spin before they sleep: those of a ThreadTeam for 0.2 ms; 4000 pauses with a contended
  // cache line are 0.3 to 0.7 ms. On a busy machine part of that may lie in the watched time.
  static constexpr double most_spinning_ms = 0.75;

  IdleWatch();  // sleeps for 0.5 ms, so that those who spin are asleep, and begins
  // CPU time in ms of the one thread or child that worked most since the beginning, at least 3.5 ms ago: the call sleeps until
  // then. Threads that ended meanwhile count as one.
  double busiest_ms() const;

 private:
  struct Used {
    double process_ms = 0, caller_ms = 0;
    std::map<pid_t, double> threads_ms, children_ms;
  };
  static Used used();
  double busiest_ms_by_now() const;

  Used before_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace aisp::measure
