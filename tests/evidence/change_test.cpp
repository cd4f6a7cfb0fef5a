// SPDX-License-Identifier: Apache-2.0
// The rule that decides what a regression is, and by simulation what it can see and how often it is wrong.
#include "evidence/expectations/change.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <iostream>
#include <limits>
#include <random>

namespace aisp::evidence {
namespace {

TEST(Change, DirectionDecidesWhatIsWorse) {
  const Range low{10, 9.9, 10.1}, high{12, 11.9, 12.1};
  EXPECT_EQ(change_of(low, high, Direction::lower, 0.05), Change::worse);
  EXPECT_EQ(change_of(low, high, Direction::higher, 0.05), Change::better);
  EXPECT_EQ(change_of(high, low, Direction::lower, 0.05), Change::better);
  EXPECT_EQ(change_of(low, high, Direction::lower, 0.5), Change::slightly_worse);
  EXPECT_EQ(change_of(low, {10.1, 10, 10.2}, Direction::lower, 0), Change::same) << "inside the expected interval";
  EXPECT_EQ(change_of(low, {10.3, 9.95, 10.6}, Direction::lower, 0), Change::same) << "its own interval holds the expected value";
  EXPECT_EQ(change_of({10, 10, 10}, {10.05, 10.05, 10.05}, Direction::lower, 0), Change::same) << "less than copies differ";
  EXPECT_EQ(change_of({0, 0, 0}, {8, 8, 8}, Direction::lower, 0.05), Change::worse);
  EXPECT_EQ(change_of({0, 0, 0}, {0, 0, 0}, Direction::lower, 0.05), Change::same);
  // Recorded runs differ by 2 %: to be 2 % below the middle of them is not to have lost 5 %.
  EXPECT_EQ(change_of({95.5, 94.6, 97.4}, {93.5, 93.0, 93.9}, Direction::higher, 0.05), Change::slightly_worse);
  EXPECT_EQ(change_of({95.5, 94.6, 97.4}, {90.7, 90.2, 91.2}, Direction::higher, 0.05), Change::worse) << "the threshold itself";
}

TEST(Change, KnowsWhatIsARatio) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(is_ratio({2, 1.9, 2.1}));
  EXPECT_TRUE(is_ratio({2, 2, 2}));
  for (const Range& range : {Range{nan, nan, nan}, Range{2, nan, 2.1}, Range{-4, -5, -3}, Range{4, 10, 1}, Range{0, 0, 0},
                             Range{2, 2.1, 2.2}, Range{2, 1, infinity}, Range{2, 0, 3}})
    EXPECT_FALSE(is_ratio(range)) << range.value << " [" << range.low << ", " << range.high << "]";
}

TEST(ExpectedOfRuns, IsTheirMedianAndNarrowsWithQuietRuns) {
  const std::vector<Range> runs{
      {4.00, 3.99, 4.01}, {4.01, 4.00, 4.02}, {3.99, 3.98, 4.00}, {4.40, 4.39, 4.41}, {4.00, 3.99, 4.01}};
  EXPECT_DOUBLE_EQ(expected_of_runs(runs, process_spread_of_gpu).value, 4.00);
  std::vector<Range> quiet;
  double width = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 12; ++i) {
    quiet.push_back({4 + 0.004 * (i % 2), 3.99, 4.01});
    const Range expected = expected_of_runs(quiet, process_spread_of_gpu);
    EXPECT_LT(expected.high - expected.low, width) << "with run " << i + 1;
    width = expected.high - expected.low;
  }
  const Range one = expected_of_runs(std::span{quiet}.first(1), process_spread_of_gpu);
  EXPECT_LT(one.low, 4 * 0.985) << "one run knows nothing of other processes";
  const Range wild = expected_of_runs(std::vector<Range>{{2, 1.9, 2.1}, {4, 3.9, 4.1}, {8, 7.9, 8.1}}, process_spread_of_gpu);
  EXPECT_LT(wild.low, 1.9) << "runs that do not agree promise less than any of them";
}

TEST(ExpectedOfRuns, OneRunFarFromTheOthersDoesNotBlindIt) {
  std::vector<Range> runs;
  for (const double value : {4.00, 4.02, 3.98, 4.01, 3.99, 4.00}) runs.push_back({value, value * 0.98, value * 1.02});
  const Range quiet = expected_of_runs(runs, process_spread_of_host);
  const Range lost{3.2, 3.14, 3.26};
  EXPECT_EQ(change_of(quiet, lost, Direction::higher, 0.05), Change::worse);
  runs.push_back({8, 7.84, 8.16});
  EXPECT_EQ(runs_apart(runs), (std::vector<bool>{false, false, false, false, false, false, true}));
  const Range after = expected_of_runs(runs, process_spread_of_host);
  EXPECT_NEAR(after.value, 4, 0.01);
  EXPECT_NEAR(after.low, quiet.low, 0.01);
  EXPECT_EQ(change_of(after, lost, Direction::higher, 0.05), Change::worse);
  const std::vector<Range> two_states{{4, 3.9, 4.1}, {4, 3.9, 4.1}, {8, 7.9, 8.1}, {8, 7.9, 8.1}};
  EXPECT_EQ(runs_apart(two_states), std::vector<bool>(4, false)) << "that is how they differ";
}

TEST(ExpectedOfRuns, HoldsNineteenOfTwentyFurtherRuns) {
  std::mt19937_64 random{11};
  std::normal_distribution<double> normal{0, process_spread_of_gpu.deviation};
  for (const std::size_t count : {1u, 3u, 6u, 12u}) {
    int held = 0;
    constexpr int trials = 4000;
    for (int trial = 0; trial < trials; ++trial) {
      std::vector<Range> runs;
      for (std::size_t i = 0; i < count; ++i) {
        const double value = std::exp(normal(random));
        runs.push_back({value, value * 0.9999, value * 1.0001});
      }
      const Range expected = expected_of_runs(runs, process_spread_of_gpu);
      const double further = std::exp(normal(random));
      held += expected.low <= further && further <= expected.high;
    }
    EXPECT_GT(held, trials * 0.94) << count << " runs";
  }
}

// A kind of pair: standard deviation between processes, half of one run's 95 % interval.
struct Noise {
  double between, half_interval;
};
struct Rates {
  double seen = 0, confirmed = 0;  // in percent; by one measurement, and by two
};

Rates regressed(const Noise& noise, const ProcessSpread& assumed, int recorded, double loss, int trials) {
  std::mt19937_64 random{7};
  std::normal_distribution<double> normal{0, 1};
  const auto run = [&](double speedup) {
    const double value = speedup * std::exp(noise.between * normal(random) + noise.half_interval / 1.96 * normal(random));
    return Range{value, value * (1 - noise.half_interval), value * (1 + noise.half_interval)};
  };
  int seen = 0, confirmed = 0;
  for (int trial = 0; trial < trials; ++trial) {
    std::vector<Range> runs;
    for (int i = 0; i < recorded; ++i) runs.push_back(run(4));
    const Range expected = expected_of_runs(runs, assumed);
    const auto is_seen = [&] { return change_of(expected, run(4 / (1 + loss)), Direction::higher, 0.05) == Change::worse; };
    const bool first = is_seen(), second = is_seen();
    seen += first;
    confirmed += first && second;
  }
  return {100.0 * seen / trials, 100.0 * confirmed / trials};
}

constexpr int recordings[] = {1, 3, 6, 10};

void expect_quiet(const Noise& noise, const ProcessSpread& assumed, int fewest_recorded = 1, double percent = 0.1) {
  for (const int recorded : recordings) {
    if (recorded < fewest_recorded) continue;
    EXPECT_LT(regressed(noise, assumed, recorded, 0, 20000).confirmed, percent)
        << noise.between << " between processes, " << recorded << " runs recorded";
  }
}

TEST(RegressionRule, UnchangedCodeIsConfirmedAsRegressedInFewerThanOneOfAThousandFindings) {
  for (const Noise& noise : {Noise{0.002, 0.02}, Noise{0.0025, 0.005}, Noise{0.005, 0.005}})
    expect_quiet(noise, process_spread_of_gpu);
  expect_quiet({0.01, 0.005}, process_spread_of_gpu, 3);  // twice the spread that one run is taken to have
  for (const Noise& noise : {Noise{0.002, 0.005}, Noise{0.005, 0.005}, Noise{0.01, 0.005}, Noise{0.015, 0.005}})
    expect_quiet(noise, process_spread_of_host);
  expect_quiet({0.02, 0.005}, process_spread_of_host);
  expect_quiet({0.05, 0.005}, process_spread_of_host, 1, 0.3);
  expect_quiet({0.1, 0.005}, process_spread_of_host, 1, 0.8);
}

TEST(RegressionRule, SeesALossOfFivePercentTheBetterTheMoreRunsWereRecorded) {
  const auto expect_growth = [](const Noise& noise, const ProcessSpread& assumed, int telling, double with_so_many) {
    double before = 0;
    for (const int recorded : recordings) {
      const double seen = regressed(noise, assumed, recorded, 0.05, 4000).seen;
      EXPECT_GT(seen, before - 1) << noise.between << " between processes, " << recorded << " runs recorded";
      before = std::max(before, seen);
      if (recorded == telling) {
        EXPECT_GT(seen, with_so_many) << noise.between << " between processes";
      }
    }
    EXPECT_GT(before, 88);
  };
  expect_growth({0.0025, 0.005}, process_spread_of_gpu, 3, 99);
  expect_growth({0.005, 0.005}, process_spread_of_gpu, 3, 97);
  expect_growth({0.01, 0.005}, process_spread_of_gpu, 3, 85);
  expect_growth({0.002, 0.02}, process_spread_of_gpu, 3, 80);    // a hull over ten such runs left 27 %
  expect_growth({0.005, 0.005}, process_spread_of_host, 6, 70);  // with three it hides in a spread that might be 10 %
}

}  // namespace
}  // namespace aisp::evidence
