// SPDX-License-Identifier: Apache-2.0
#include "measure/energy_counter.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace aisp::measure {
namespace {

// After an update the next is a step away, and reads in between would only delay the host's launches. Measured steps are inexact
// by the time between reads, so the pause is a part of the shortest.
constexpr double quiet_part = 0.8;
constexpr double between_looks_s = 0.001;
// Some reads take ten times as long as others; an update during such a read has no usable time.
constexpr double widest = 4;  // times the narrowest: under load reads take twice as long

}  // namespace

EnergyCounter::EnergyCounter(std::function<std::optional<std::uint64_t>()> read_mj, std::function<double()> now_s)
    : read_mj_{std::move(read_mj)}, now_s_{std::move(now_s)}, thread_{[this] { watch(); }} {}

EnergyCounter::~EnergyCounter() {
  {
    const std::lock_guard lock{mutex_};
    ends_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

std::optional<CounterUpdate> EnergyCounter::last_update() const {
  const std::lock_guard lock{mutex_};
  return update_;
}

bool EnergyCounter::pause(double seconds) {
  std::unique_lock lock{mutex_};
  return !wake_.wait_for(lock, std::chrono::duration<double>{seconds}, [this] { return ends_; });
}

void EnergyCounter::watch() {
  std::optional<std::uint64_t> before_mj;
  double before_s = 0, shortest_step_s = 0, narrowest_s = 0, pause_s = 0;
  do {
    const bool rested = pause_s > between_looks_s;
    const double start_s = now_s_();
    const std::optional<std::uint64_t> value_mj = read_mj_();
    if (!value_mj) return;
    const double width_s = now_s_() - before_s;
    pause_s = between_looks_s;
    // An update during a pause may have come at any time of it.
    if (before_mj && *value_mj != *before_mj && !rested) {
      narrowest_s = narrowest_s > 0 ? std::min(narrowest_s, width_s) : width_s;
      if (width_s <= widest * narrowest_s) {
        const double step_s = publish({*value_mj, before_s + width_s / 2});
        if (step_s > 0) shortest_step_s = shortest_step_s > 0 ? std::min(shortest_step_s, step_s) : step_s;
        if (step_s > 0) pause_s = quiet_part * shortest_step_s;
      }
    }
    before_mj = value_mj;
    before_s = start_s;
  } while (pause(pause_s));
}

double EnergyCounter::publish(const CounterUpdate& update) {
  const std::lock_guard lock{mutex_};
  const double step_s = update_ ? update.at_s - update_->at_s : 0;
  update_ = update;
  return step_s;
}

}  // namespace aisp::measure
