// SPDX-License-Identifier: Apache-2.0
#include "measure/statistics.hpp"

#include <gtest/gtest.h>

#include <random>

namespace aisp::measure {
namespace {

TEST(Percentile, InterpolatesBetweenRanks) {
  const std::vector<double> sorted{1, 2, 3, 4};
  EXPECT_DOUBLE_EQ(percentile(sorted, 0), 1);
  EXPECT_DOUBLE_EQ(percentile(sorted, 50), 2.5);
  EXPECT_DOUBLE_EQ(percentile(sorted, 100), 4);
  EXPECT_DOUBLE_EQ(percentile(sorted, 75), 3.25);
}

TEST(Median, OfOddAndEvenCounts) {
  EXPECT_DOUBLE_EQ(median(std::vector<double>{5, 1, 3}), 3);
  EXPECT_DOUBLE_EQ(median(std::vector<double>{4, 1, 3, 2}), 2.5);
  EXPECT_DOUBLE_EQ(median({}), 0);
}

TEST(Summary, OfKnownValues) {
  const auto summary = summarize(std::vector<double>{2, 4, 4, 4, 5, 5, 7, 9}, std::vector<double>{10});
  EXPECT_EQ(summary.count, 8u);
  EXPECT_DOUBLE_EQ(summary.mean, 5);
  EXPECT_DOUBLE_EQ(summary.median, 4.5);
  EXPECT_NEAR(summary.std, 2.138089935, 1e-9);  // n - 1
  EXPECT_DOUBLE_EQ(summary.min, 2);
  EXPECT_DOUBLE_EQ(summary.max, 9);
  ASSERT_EQ(summary.custom.size(), 1u);
  EXPECT_NEAR(summary.custom[0].value, 3.4, 1e-9);
}

TEST(Ratio, CommonDriftDoesNotWidenTheInterval) {
  // Both variants slow down by 30 % over the run; their ratio stays 2 within a percent of noise.
  std::mt19937 random{7};
  std::normal_distribution<double> noise{1, 0.01};
  std::vector<double> baseline, variant;
  for (int round = 0; round < 60; ++round) {
    const double drift = 1 + 0.005 * round;
    baseline.push_back(2 * drift * noise(random));
    variant.push_back(1 * drift * noise(random));
  }
  const Interval together = ratio_of_medians(baseline, variant, 1);
  EXPECT_NEAR(together.value, 2, 0.02);
  EXPECT_LT(together.low, 2.0);
  EXPECT_GT(together.high, 2.0);
  EXPECT_LT(together.relative_width(), 0.06);

  std::vector<double> unrelated = variant;
  std::shuffle(unrelated.begin(), unrelated.end(), random);
  EXPECT_LT(together.relative_width(), ratio_of_medians(baseline, unrelated, 1).relative_width());
}

TEST(Ratio, IntervalCoversTheTruthAboutNineteenTimesInTwenty) {
  std::mt19937 random{11};
  std::lognormal_distribution<double> noise{0, 0.05};
  int covered = 0;
  constexpr int trials = 200;
  for (int trial = 0; trial < trials; ++trial) {
    std::vector<double> baseline, variant;
    for (int round = 0; round < 40; ++round) {
      baseline.push_back(1.3 * noise(random));
      variant.push_back(noise(random));
    }
    const Interval interval = ratio_of_medians(baseline, variant, static_cast<std::uint64_t>(trial), 400);
    covered += interval.low <= 1.3 && 1.3 <= interval.high;
  }
  EXPECT_GE(covered, trials * 88 / 100);
}

TEST(Verdict, NeedsAnIntervalThatExcludesOne) {
  EXPECT_EQ(verdict({1.2, 1.1, 1.3, 20}), evidence::Verdict::faster);
  EXPECT_EQ(verdict({0.8, 0.7, 0.9, 20}), evidence::Verdict::slower);
  EXPECT_EQ(verdict({1.02, 0.99, 1.05, 20}), evidence::Verdict::cannot_tell);
  EXPECT_EQ(verdict({1.008, 1.007, 1.009, 20}), evidence::Verdict::cannot_tell) << "narrower than what alignment alone does";
  EXPECT_EQ(verdict({0.992, 0.991, 0.993, 20}), evidence::Verdict::cannot_tell);
}

TEST(Verdict, NeedsFiveRounds) {
  const std::vector<double> baseline{2, 2, 2, 2, 2}, variant{1, 1, 1, 1, 1};
  for (std::size_t rounds = 1; rounds < fewest_rounds; ++rounds)
    EXPECT_EQ(verdict(ratio_of_medians(std::span{baseline}.first(rounds), std::span{variant}.first(rounds), 1)),
              evidence::Verdict::cannot_tell)
        << rounds;
  EXPECT_EQ(verdict(ratio_of_medians(baseline, variant, 1)), evidence::Verdict::faster);
}

}  // namespace
}  // namespace aisp::measure
