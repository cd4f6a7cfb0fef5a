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
// A thread seen at work only briefly may have been waiting for a CPU, and one that is runnable waits for it now.
constexpr int most_doubtful_windows = 4, most_windows = 16;
constexpr double least_doubtful_ms = 0.1;

// Returns the time beyond the grace, which is longer than it should be where this thread had to wait for a CPU.
double beyond_grace(double ms) { return std::max(0.0, ms - std::chrono::duration<double, std::milli>{grace}.count()); }

}  // namespace

IdleWatch::IdleWatch() {
  const CpuUse began = CpuUse::now();
  const std::map<pid_t, double> children_began_ms = living_children_ms();
  std::this_thread::sleep_for(grace);
  children_ms_ = living_children_ms();
  before_ = CpuUse::now();
  start_ = std::chrono::steady_clock::now();
  for (const auto& [thread, now_ms] : before_.threads_ms)
    early_ms_[thread] = beyond_grace(before_.of_thread_since(began, thread));
  for (const auto& [child, now_ms] : children_ms_) early_ms_[child] = beyond_grace(ms_since(children_began_ms, child, now_ms));
}

double IdleWatch::busiest_ms() const {
  double busiest_ms = 0;
  for (int windows = 1; windows <= most_windows; ++windows) {
    std::this_thread::sleep_until(start_ + windows * window);
    busiest_ms = busiest_ms_by_now();
    if (busiest_ms > most_spinning_ms) break;
    if (others_are_runnable()) continue;
    if (busiest_ms < least_doubtful_ms || windows >= most_doubtful_windows) break;
  }
  return busiest_ms;
}

double IdleWatch::busiest_ms_by_now() const {
  const CpuUse after = CpuUse::now();
  double busiest_ms = after.of_ended_since(before_);
  const auto early_ms = [this](pid_t id) {
    const auto found = early_ms_.find(id);
    return found == early_ms_.end() ? 0 : found->second;
  };
  for (const auto& [thread, used_ms] : after.threads_ms)
    busiest_ms = std::max(busiest_ms, early_ms(thread) + after.of_thread_since(before_, thread));
  for (const auto& [child, now_ms] : living_children_ms())
    busiest_ms = std::max(busiest_ms, early_ms(child) + ms_since(children_ms_, child, now_ms));
  return busiest_ms;
}

}  // namespace aisp::measure
