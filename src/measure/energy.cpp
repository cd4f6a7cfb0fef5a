// SPDX-License-Identifier: Apache-2.0
#include "measure/energy.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace aisp::measure {
namespace {

// A window of a second has two hundred batches.
constexpr double batch_s = 0.005;
constexpr double most_runs_a_batch = 1 << 14;
// A counter that has not moved for this long on a busy GPU will not move at all.
constexpr double no_update_s = 2;
constexpr int steps_left_out = 2;

struct Update {
  CounterUpdate counter;
  EnergyProgress progress;
};

// One window, which advances by updates of the counter.
class Window {
 public:
  Window(std::size_t variant, double run_s, const EnergyCallbacks& callbacks) : variant_{variant}, callbacks_{callbacks} {
    batch_ = static_cast<int>(std::clamp(std::ceil(batch_s / std::max(run_s, 1e-9)), 1.0, most_runs_a_batch));
    // Allows for an execution that is longer than the counter's timeout.
    patience_s_ = no_update_s + 4 * run_s;
    if (const auto before = callbacks_.last_update()) last_at_s_ = before->at_s;
  }

  // Returns the next update; nothing if the counter stands still or can no longer be read.
  std::optional<Update> next_update() {
    const double start_s = callbacks_.now_s();
    do {
      const EnergyProgress progress = callbacks_.queue(variant_, batch_);
      const std::optional<CounterUpdate> update = callbacks_.last_update();
      if (!update || update->at_s == last_at_s_) continue;
      last_at_s_ = update->at_s;
      return Update{*update, progress};
    } while (callbacks_.now_s() - start_s <= patience_s_);
    return std::nullopt;
  }

 private:
  std::size_t variant_;
  const EnergyCallbacks& callbacks_;
  int batch_ = 1;
  double patience_s_ = no_update_s;
  double last_at_s_ = -1;  // time of the last update seen
};

EnergyWindow between(const Update& first, const Update& last) {
  const std::size_t runs = last.progress.runs - first.progress.runs;
  return {.joules = static_cast<double>(last.counter.millijoules - first.counter.millijoules) * 1e-3,
          .seconds = last.counter.at_s - first.counter.at_s,
          .run_s = (last.progress.gpu_s - first.progress.gpu_s) / static_cast<double>(runs),
          .runs = runs};
}

std::optional<EnergyWindow> read_window(std::size_t variant, double run_s, double window_s, const EnergyCallbacks& callbacks,
                                        std::vector<double>& steps_s) {
  Window window{variant, run_s, callbacks};
  std::optional<Update> first;
  for (int step = 0; step < steps_left_out; ++step)
    if (first = window.next_update(); !first) return std::nullopt;
  for (Update last = *first;;) {
    const std::optional<Update> now = window.next_update();
    if (!now) return std::nullopt;
    steps_s.push_back(now->counter.at_s - last.counter.at_s);
    last = *now;
    if (last.counter.at_s - first->counter.at_s >= window_s && last.progress.runs > first->progress.runs)
      return between(*first, last);
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
    // Keeps only whole rounds: the i-th windows of all variants belong together.
    for (std::size_t variant = 0; variant < windows.size(); ++variant) readings.windows[variant].push_back(windows[variant]);
  }
  return readings;
}

}  // namespace aisp::measure
