// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <ctime>

namespace aisp::measure {

// By the thread's own clock, so that a busy machine takes longer and finds the same.
inline void work_ms(long milliseconds) {
  const auto now_ns = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1'000'000'000L + time.tv_nsec;
  };
  for (const long end_ns = now_ns() + milliseconds * 1'000'000; now_ns() < end_ns;) {
  }
}

}  // namespace aisp::measure
