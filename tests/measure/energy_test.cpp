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
    return {.queue = [this](std::size_t variant, int runs) { queue(variant, runs); },
            .finish = [this] { finish(); },
            .read_mj = [this]() -> std::optional<std::uint64_t> {
              ++reads;
              return broken ? std::nullopt : std::optional{shown_mj_};
            },
            .now_s = [this] { return now_s_; }};
  }
  const std::vector<double>& run_s() const { return run_s_; }

  bool stuck = false, broken = false;
  std::size_t reads = 0;

 private:
  void queue(std::size_t variant, int runs) {
    if (!batches_.empty()) work(batches_.front().first, batches_.front().second), batches_.pop_front();
    batches_.emplace_back(variant, runs);
  }
  void finish() {
    for (const auto& [variant, runs] : batches_) work(variant, runs);
    batches_.clear();
  }
  void work(std::size_t variant, int runs) {
    const double end_s = now_s_ + runs * run_s_[variant];
    while (next_update_s_ <= end_s) {
      joules_ += (next_update_s_ - now_s_) * watts_[variant];
      now_s_ = next_update_s_;
      next_update_s_ += 0.1;
      if (!stuck) shown_mj_ = static_cast<std::uint64_t>(joules_ * 1e3);
    }
    joules_ += (end_s - now_s_) * watts_[variant];
    now_s_ = end_s;
  }

  std::vector<double> watts_, run_s_;
  std::deque<std::pair<std::size_t, int>> batches_;
  double now_s_ = 5, next_update_s_ = 5.037, joules_ = 1000;
  std::uint64_t shown_mj_ = 1000000;
};

double mean_joules(const std::vector<EnergyWindow>& windows) {
  double joules = 0, runs = 0;
  for (const EnergyWindow& window : windows) {
    joules += window.joules;
    runs += static_cast<double>(window.runs);
  }
  return joules / runs;
}

TEST(Energy, JoulesARunAreThoseOfTheVariant) {
  MadeUpGpu gpu{{300, 600}, {0.001, 0.0002}};
  const EnergyReadings readings = read_energy(gpu.run_s(), {}, gpu.callbacks());
  EXPECT_EQ(readings.obstacle, "");
  for (const auto& windows : readings.windows) EXPECT_EQ(windows.size(), static_cast<std::size_t>(energy_windows));
  EXPECT_NEAR(mean_joules(readings.windows[0]), 0.3, 0.3 * 0.01);
  EXPECT_NEAR(mean_joules(readings.windows[1]), 0.12, 0.12 * 0.01);
}

TEST(Energy, EachWindowIsToldToTwoPercent) {
  MadeUpGpu gpu{{300, 600}, {0.001, 0.0002}};
  const EnergyReadings readings = read_energy(gpu.run_s(), {.window_s = 0.5}, gpu.callbacks());
  for (const EnergyWindow& window : readings.windows[0]) {
    EXPECT_NEAR(window.joules_a_run(), 0.3, 0.3 * 0.02) << "another variant's energy got into the window";
    EXPECT_GE(window.seconds, 0.5);
  }
}

TEST(Energy, TheCountersStepIsSeen) {
  MadeUpGpu gpu{{300}, {0.001}};
  const EnergyReadings readings = read_energy(gpu.run_s(), {}, gpu.callbacks());
  ASSERT_GT(readings.steps_s.size(), 50u);
  for (const double step_s : readings.steps_s) EXPECT_NEAR(step_s, 0.1, 0.011);
}

// A look keeps the host from queueing work.
TEST(Energy, TheCounterIsLeftAloneBetweenUpdates) {
  MadeUpGpu gpu{{300}, {0.001}};
  const EnergyReadings readings = read_energy(gpu.run_s(), {}, gpu.callbacks());
  EXPECT_LT(gpu.reads, 10 * readings.steps_s.size()) << "a look every 5 ms would be 20 a step";
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

TEST(Energy, ACounterThatCannotBeReadEndsIt) {
  MadeUpGpu gpu{{300}, {0.001}};
  gpu.broken = true;
  EXPECT_NE(read_energy(gpu.run_s(), {}, gpu.callbacks()).obstacle, "");
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
