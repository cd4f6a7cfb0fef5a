// SPDX-License-Identifier: Apache-2.0
#include "measure/statistics/clock_step.hpp"

#include <gtest/gtest.h>

#include <array>

#include "measure/statistics/statistics.hpp"

namespace aisp::measure {
namespace {

double step_of(std::vector<double> readings) {
  const std::array<std::vector<double>, 1> all{std::move(readings)};
  return clock_step_ms(all);
}

TEST(ClockStep, IsTheLeastDistanceOfReadings) {
  EXPECT_NEAR(step_of({0.001376, 0.001408, 0.001408, 0.001472, 0.001376}), 3.2e-5, 1e-9);
}

TEST(ClockStep, IsFoundAmongReadingsRoundedToFloat) {
  std::vector<double> readings;
  for (int i = 0; i < 20; ++i) readings.push_back(static_cast<float>(1.5 + 3.2e-5 * (i % 7)));
  EXPECT_NEAR(step_of(readings), 3.2e-5, 1e-6);
}

TEST(ClockStep, IsNoneWhereNothingRepeats) { EXPECT_EQ(step_of({1.1, 1.2, 1.25, 1.3, 1.37}), 0); }

TEST(ClockStep, IsNeverLargerThanAnyClocks) { EXPECT_LE(step_of({1, 2, 1, 2}), 5e-4); }

TEST(Spread, KeepsWhatDoesNotRepeatAndSpreadsTheRestEvenly) {
  EXPECT_EQ(spread_over_step(std::vector<double>{1, 2, 4}, 1), (std::vector<double>{1, 2, 4}));
  const std::vector<double> spread = spread_over_step(std::vector<double>(100, 7.0), 1);
  for (const double value : spread) {
    EXPECT_GE(value, 6.5);
    EXPECT_LE(value, 7.5);
  }
  EXPECT_NEAR(median(spread), 7, 0.01);
}

TEST(Spread, TheMedianSeesHowOftenEachStepWasRead) {
  std::vector<double> readings(70, 10.0);
  readings.resize(100, 11.0);
  EXPECT_NEAR(median(spread_over_step(readings, 1)), 10.21, 0.03);  // 9.5 + 0.5 / 0.7
}

}  // namespace
}  // namespace aisp::measure
