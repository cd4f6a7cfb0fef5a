// SPDX-License-Identifier: Apache-2.0
#include "measure/idle_watch.hpp"

#include <algorithm>
#include <thread>

namespace aisp::measure {
namespace {

using namespace std::chrono_literals;

// A thread that spins for its next call is asleep after that.
constexpr auto grace = 500us;
constexpr auto window = 3500us;
// A thread seen at work only briefly may have been waiting for a CPU.
constexpr int most_windows = 4;
constexpr double least_doubtful_ms = 0.1;

}  // namespace

IdleWatch::IdleWatch() {
  std::this_thread::sleep_for(grace);
  children_ms_ = living_children_ms();
  before_ = CpuUse::now();
  start_ = std::chrono::steady_clock::now();
}

double IdleWatch::busiest_ms() const {
  double busiest_ms = 0;
  for (int windows = 1; windows <= most_windows; ++windows) {
    std::this_thread::sleep_until(start_ + windows * window);
    busiest_ms = busiest_ms_by_now();
    if (busiest_ms < least_doubtful_ms || busiest_ms > most_spinning_ms) break;
  }
  return busiest_ms;
}

double IdleWatch::busiest_ms_by_now() const {
  const CpuUse after = CpuUse::now();
  double busiest_ms = after.of_ended_since(before_);
  for (const auto& [thread, used_ms] : after.threads_ms)
    busiest_ms = std::max(busiest_ms, after.of_thread_since(before_, thread));
  for (const auto& [child, now_ms] : living_children_ms()) {
    const auto before = children_ms_.find(child);
    busiest_ms = std::max(busiest_ms, before == children_ms_.end() ? now_ms : now_ms - before->second);
  }
  return busiest_ms;
}

}  // namespace aisp::measure
