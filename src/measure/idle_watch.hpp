// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <chrono>
#include <map>

#include "measure/cpu_use.hpp"

namespace aisp::measure {

// Other threads that may have worked, for messages.
inline constexpr const char* who_spins =
    "; those of OpenMP and of a BLAS spin for milliseconds before they sleep, unless OMP_WAIT_POLICY=passive and "
    "OPENBLAS_THREAD_TIMEOUT=4 (or OPENBLAS_NUM_THREADS=1) are set before the program starts";

// Measures the work of other threads of the process, and of child processes, while the calling thread has nothing for them to do.
class IdleWatch {
 public:
  // Idle workers spin before they sleep: those of a ThreadTeam for 0.2 ms; 4000 pauses of 140 cycles are 0.28 ms at 2 GHz. On a
  // busy machine the spinning may fall into the watched time, and contention prolongs it.
  static constexpr double most_spinning_ms = 0.75;

  IdleWatch();  // sleeps for 0.5 ms, so that spinning threads fall asleep, and begins
  // Returns the CPU time in ms of the thread or child that worked most since the beginning; threads that ended meanwhile count as
  // one. It sleeps until the beginning was 3.5 ms ago, up to four times as long while the answer is in doubt, and up to sixteen
  // times while one of them waits for a CPU.
  double busiest_ms() const;

 private:
  double busiest_ms_by_now() const;

  CpuUse before_;
  std::map<pid_t, double> children_ms_;
  std::map<pid_t, double> early_ms_;  // of threads and children before the beginning, beyond the grace
  std::chrono::steady_clock::time_point start_;
};

}  // namespace aisp::measure
