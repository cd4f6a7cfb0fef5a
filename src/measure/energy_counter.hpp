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

// Polls an energy counter from a thread of its own as long as it lives. A read takes milliseconds, under load tens of them, too
// long for the thread that keeps a GPU busy.
class EnergyCounter {
 public:
  // Both are called from that thread. `read_mj` returns nothing if the counter can no longer be read, which ends the polling.
  EnergyCounter(std::function<std::optional<std::uint64_t>()> read_mj, std::function<double()> now_s);
  ~EnergyCounter();
  EnergyCounter(const EnergyCounter&) = delete;
  EnergyCounter& operator=(const EnergyCounter&) = delete;

  // Returns the counter's last update, at the middle of its possible times, and its value since then; updates of uncertain time
  // are left out. Nothing before the first update.
  std::optional<CounterUpdate> last_update() const;

 private:
  void watch();
  bool pause(double seconds);                   // false: the polling is to end
  double publish(const CounterUpdate& update);  // returns the time since the one before; 0 for the first

  std::function<std::optional<std::uint64_t>()> read_mj_;
  std::function<double()> now_s_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool ends_ = false;
  std::optional<CounterUpdate> update_;
  std::thread thread_;
};

}  // namespace aisp::measure
