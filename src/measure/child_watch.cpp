// SPDX-License-Identifier: Apache-2.0
#include "measure/child_watch.hpp"

#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "measure/cpu_use.hpp"

namespace aisp::measure {
namespace {

// A running process's CPU time lags by up to a tick; a sleeping one's is exact.
constexpr std::chrono::microseconds until_asleep{200};

// Checks with one system call, so that pairs without children pay almost nothing.
bool has_children() {
  siginfo_t ignored{};
  return ::waitid(P_ALL, 0, &ignored, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0 || errno != ECHILD;
}

double used_ms() {
  double sum_ms = ended_children_ms();
  if (!has_children()) return sum_ms;
  for (const auto& [child, ms] : living_children_ms()) sum_ms += ms;
  return sum_ms;
}

}  // namespace

void ChildWatch::begin() {
  const double now_ms = used_ms();
  outside_ms_ += std::max(0.0, now_ms - known_ms_);
  known_ms_ = now_ms;
}

void ChildWatch::end() {
  if (has_children()) std::this_thread::sleep_for(until_asleep);
  forget();
}

void ChildWatch::forget() { known_ms_ = used_ms(); }

void ChildWatch::start_over() {
  forget();
  outside_ms_ = 0;
}

}  // namespace aisp::measure
