// SPDX-License-Identifier: Apache-2.0
#include "measure/statistics/statistics.hpp"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace aisp::measure
