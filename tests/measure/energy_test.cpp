// SPDX-License-Identifier: Apache-2.0
#include "measure/energy.hpp"

#include <gtest/gtest.h>

#include <deque>

namespace aisp::measure {
namespace {

// A GPU whose variants draw a constant power and whose counter moves every 100 ms, shifted against the executions.
class MadeUpGpu {
 public:
  MadeUpGpu(std::vector<double> watts, std::vector<double> run_s) : watts_{std::move(watts)}, run_s_{std::move(run_s)} {}

  EnergyCallbacks callbacks() {
    return {.queue = [this](std::size_t variant, int runs) { return queue(variant, runs); },
            .finish = [this] { finish(); },
            .last_update = [this] { return update_; },
            .now_s = [this] { return now_s_; }};
  }
  const std::vector<double>& run_s() const { return run_s_; }

  bool stuck = false;

 private:
  static constexpr std::size_t ahead = 8;

  EnergyProgress queue(std::size_t variant, int runs) {
    batches_.emplace_back(variant, runs);
    if (batches_.size() < ahead) return progress_;
    work(batches_.front().first, batches_.front().second);
    batches_.pop_front();
    return progress_;
  }
  void finish() {
    for (const auto& [variant, runs] : batches_) work(variant, runs);
    batches_.clear();
    progress_ = {};
  }
  void work(std::size_t variant, int runs) {
    const double took_s = runs * run_s_[variant], end_s = now_s_ + took_s;
    while (next_update_s_ <= end_s) {
      joules_ += (next_update_s_ - now_s_) * watts_[variant];
      now_s_ = next_update_s_;
      if (!stuck) update_ = {static_cast<std::uint64_t>(joules_ * 1e3), now_s_};
      next_update_s_ += 0.1;
    }
    joules_ += (end_s - now_s_) * watts_[variant];
    now_s_ = end_s;
    progress_.runs += static_cast<std::size_t>(runs);
    progress_.gpu_s += took_s;
  }

  std::vector<double> watts_, run_s_;
  std::deque<std::pair<std::size_t, int>> batches_;
  EnergyProgress progress_;
  double now_s_ = 5, next_update_s_ = 5.037, joules_ = 1000;
  std::optional<CounterUpdate> update_;
};

double mean_joules(const std::vector<EnergyWindow>& windows) {
  double sum = 0;
  for (const EnergyWindow& window : windows) sum += window.joules_a_run();
  return sum / static_cast<double>(windows.size());
}

TEST(Energy, JoulesARunAreThoseOfTheVariant) {
  MadeUpGpu gpu{{300, 600}, {0.001, 0.0002}};
  const EnergyReadings readings = read_energy(gpu.run_s(), {}, gpu.callbacks());
  EXPECT_EQ(readings.obstacle, "");
  for (const auto& windows : readings.windows) EXPECT_EQ(windows.size(), static_cast<std::size_t>(energy_windows));
  EXPECT_NEAR(mean_joules(readings.windows[0]), 0.3, 0.3 * 0.01);
  EXPECT_NEAR(mean_joules(readings.windows[1]), 0.12, 0.12 * 0.01);
}

// Batches end when they end, not when the counter moves.
TEST(Energy, AShortWindowIsAsGoodAsTheCounter) {
  MadeUpGpu gpu{{300, 600}, {0.0177, 0.0002}};
  const EnergyReadings readings = read_energy(gpu.run_s(), {.window_s = 0.1}, gpu.callbacks());
  for (const EnergyWindow& window : readings.windows[0]) {
    EXPECT_NEAR(window.joules_a_run(), 5.31, 5.31 * 0.001) << "another variant's energy got into the window";
    EXPECT_GE(window.seconds, 0.099);
  }
}

TEST(Energy, TheCountersStepIsSeen) {
  MadeUpGpu gpu{{300}, {0.001}};
  const EnergyReadings readings = read_energy(gpu.run_s(), {}, gpu.callbacks());
  ASSERT_GT(readings.steps_s.size(), 50u);
  for (const double step_s : readings.steps_s) EXPECT_NEAR(step_s, 0.1, 0.011);
}

TEST(Energy, ExecutionsLongerThanTheWindowHaveAWholeOne) {
  MadeUpGpu gpu{{500}, {3.0}};
  const EnergyReadings readings = read_energy(gpu.run_s(), {.window_s = 0.2, .deadline_s = 1000}, gpu.callbacks());
  EXPECT_EQ(readings.obstacle, "");
  for (const EnergyWindow& window : readings.windows[0]) EXPECT_GE(window.runs, 1u);
  EXPECT_NEAR(mean_joules(readings.windows[0]), 1500, 150);
}

TEST(Energy, ACounterThatStandsStillEndsIt) {
  MadeUpGpu gpu{{300}, {0.001}};
  gpu.stuck = true;
  const EnergyReadings readings = read_energy(gpu.run_s(), {}, gpu.callbacks());
  EXPECT_EQ(readings.obstacle, "the energy counter does not move");
  EXPECT_TRUE(readings.windows[0].empty());
}

TEST(Energy, WholeRoundsStandWhenTimeIsUp) {
  MadeUpGpu gpu{{300, 600}, {0.001, 0.001}};
  const EnergyReadings readings = read_energy(gpu.run_s(), {.window_s = 1, .deadline_s = 4}, gpu.callbacks());
  EXPECT_EQ(readings.obstacle, "time was up after 2 of 6 windows");
  EXPECT_EQ(readings.windows[0].size(), 2u);
  EXPECT_EQ(readings.windows[1].size(), 2u);
}

}  // namespace
}  // namespace aisp::measure
