// SPDX-License-Identifier: Apache-2.0
#include "measure/energy.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace aisp::measure {
namespace {

// Between two looks at the counter: a look costs a millisecond, and a window of a second is told to half a percent.
constexpr double batch_s = 0.005;
constexpr double most_runs_a_batch = 1 << 14;
// A counter that has not moved for this long, with a GPU at work, will not.
constexpr double no_update_s = 2;
constexpr int steps_left_out = 2;
constexpr double quiet_part = 0.8;  // of a step

struct Update {
  double at_s = 0;
  std::uint64_t millijoules = 0;
  std::size_t runs = 0;  // ended until then
};

// One window. Updates of the counter are what it advances by.
class Window {
 public:
  Window(std::size_t variant, double run_s, const EnergyCallbacks& callbacks) : variant_{variant}, callbacks_{callbacks} {
    batch_ = static_cast<int>(std::clamp(std::ceil(batch_s / std::max(run_s, 1e-9)), 1.0, most_runs_a_batch));
    // An execution that is longer than the counter's patience still ends.
    patience_s_ = no_update_s + 4 * run_s;
  }

  // Nothing when the counter stands still or can no longer be read.
  std::optional<Update> next_update() {
    const double start_s = callbacks_.now_s();
    for (;;) {
      callbacks_.queue(variant_, batch_);
      ++batches_;
      if (callbacks_.now_s() < quiet_until_s_) continue;
      const auto value = callbacks_.read_mj();
      const double now_s = callbacks_.now_s();
      if (!value) return std::nullopt;
      const bool moved = looked_ && *value != last_mj_;
      last_mj_ = *value;
      looked_ = true;
      if (moved) {
        // The next look is worth its time, in which nothing is queued, only when the next update is near.
        if (last_update_s_ > 0) quiet_until_s_ = now_s + quiet_part * (now_s - last_update_s_);
        last_update_s_ = now_s;
        return Update{now_s, *value, batches_ * static_cast<std::size_t>(batch_)};
      }
      if (now_s - start_s > patience_s_) return std::nullopt;
    }
  }

 private:
  std::size_t variant_;
  const EnergyCallbacks& callbacks_;
  int batch_ = 1;
  double patience_s_ = no_update_s;
  std::size_t batches_ = 0;
  std::uint64_t last_mj_ = 0;
  bool looked_ = false;
  double last_update_s_ = 0, quiet_until_s_ = 0;
};

std::optional<EnergyWindow> read_window(std::size_t variant, double run_s, double window_s, const EnergyCallbacks& callbacks,
                                        std::vector<double>& steps_s) {
  Window window{variant, run_s, callbacks};
  std::optional<Update> first;
  for (int step = 0; step < steps_left_out; ++step)
    if (first = window.next_update(); !first) return std::nullopt;
  for (Update last = *first;;) {
    const std::optional<Update> now = window.next_update();
    if (!now) return std::nullopt;
    steps_s.push_back(now->at_s - last.at_s);
    last = *now;
    if (last.at_s - first->at_s < window_s || last.runs == first->runs) continue;
    return EnergyWindow{static_cast<double>(last.millijoules - first->millijoules) * 1e-3, last.at_s - first->at_s,
                        last.runs - first->runs};
  }
}

}  // namespace

EnergyReadings read_energy(const std::vector<double>& run_s, const EnergyOptions& options, const EnergyCallbacks& callbacks) {
  EnergyReadings readings;
  readings.windows.resize(run_s.size());
  std::mt19937_64 random{options.seed};
  std::vector<std::size_t> order(run_s.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const double start_s = callbacks.now_s();
  for (int round = 0; round < energy_windows; ++round) {
    if (callbacks.now_s() - start_s > options.deadline_s) {
      readings.obstacle = "time was up after " + std::to_string(round) + " of " + std::to_string(energy_windows) + " windows";
      break;
    }
    std::shuffle(order.begin(), order.end(), random);
    std::vector<EnergyWindow> windows(run_s.size());
    for (const std::size_t variant : order) {
      const auto window = read_window(variant, run_s[variant], options.window_s, callbacks, readings.steps_s);
      callbacks.finish();
      if (!window) {
        readings.obstacle = "the energy counter does not move";
        return readings;
      }
      windows[variant] = *window;
    }
    // Only whole rounds: the i-th windows of all variants belong together.
    for (std::size_t variant = 0; variant < windows.size(); ++variant) readings.windows[variant].push_back(windows[variant]);
  }
  return readings;
}

}  // namespace aisp::measure
