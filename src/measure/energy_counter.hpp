// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

namespace aisp::measure {

struct CounterUpdate {
  std::uint64_t millijoules = 0;
  double at_s = 0;
};

// Watches an energy counter from a thread of its own for as long as it lives. A look takes milliseconds, under load tens of them,
// and whoever keeps a GPU at work cannot spare them.
class EnergyCounter {
 public:
  // Both are called from the thread. `read_mj` gives nothing when the counter can no longer be read, which ends the watch.
  EnergyCounter(std::function<std::optional<std::uint64_t>()> read_mj, std::function<double()> now_s);
  ~EnergyCounter();
  EnergyCounter(const EnergyCounter&) = delete;
  EnergyCounter& operator=(const EnergyCounter&) = delete;

  // When the counter moved the last time, as the middle of the time in which it must have, and its value since then; updates
  // whose time is not known well are left out. Nothing before it has moved.
  std::optional<CounterUpdate> last_update() const;

 private:
  void watch();
  bool pause(double seconds);                   // false: the end has come
  double publish(const CounterUpdate& update);  // the time since the one before; 0 for the first

  std::function<std::optional<std::uint64_t>()> read_mj_;
  std::function<double()> now_s_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool ends_ = false;
  std::optional<CounterUpdate> update_;
  std::thread thread_;
};

}  // namespace aisp::measure
