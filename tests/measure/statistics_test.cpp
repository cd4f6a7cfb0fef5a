// SPDX-License-Identifier: Apache-2.0
#include "measure/statistics/statistics.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace aisp::measure {
namespace {

TEST(Percentile, InterpolatesBetweenRanks) {
  const std::vector<double> sorted{1, 2, 3, 4};
  EXPECT_DOUBLE_EQ(percentile(sorted, 0), 1);
  EXPECT_DOUBLE_EQ(percentile(sorted, 50), 2.5);
  EXPECT_DOUBLE_EQ(percentile(sorted, 100), 4);
  EXPECT_DOUBLE_EQ(percentile(sorted, 75), 3.25);
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

TEST(TrimmedMean, LeavesTheLargestTenthOut) {
  EXPECT_DOUBLE_EQ(trimmed_mean({1, 1000, 1, 1, 2, 1, 1, 2, 1, 1}), 11.0 / 9);
  EXPECT_DOUBLE_EQ(trimmed_mean({1, 4}), 2.5);
  EXPECT_DOUBLE_EQ(trimmed_mean({}), 0);
}

TEST(RankDeviations, OfKnownValues) {
  const std::vector<double> low{1, 2, 3, 4}, high{5, 6, 7, 8}, same{1, 2, 3, 4};
  EXPECT_DOUBLE_EQ(rank_deviations(high, low), 8 / std::sqrt(12.0));
  EXPECT_DOUBLE_EQ(rank_deviations(low, high), -8 / std::sqrt(12.0));
  EXPECT_DOUBLE_EQ(rank_deviations(same, low), 0);
  EXPECT_DOUBLE_EQ(rank_deviations({}, low), 0);
}

}  // namespace
}  // namespace aisp::measure
