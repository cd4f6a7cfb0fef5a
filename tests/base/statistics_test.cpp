// SPDX-License-Identifier: Apache-2.0
#include "base/math/statistics.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace aisp::base {
namespace {

// Chance that the median of the distribution lies between the values of these ranks: at least low + 1 and at most high of `count`
// values lie below it. By Pascal's triangle, not by the logarithms of the code.
double coverage(std::size_t count, const MedianRanks& ranks) {
  std::vector<double> chances{1};
  for (std::size_t n = 1; n <= count; ++n) {
    std::vector<double> next(n + 1);
    for (std::size_t k = 0; k <= n; ++k) next[k] = ((k < n ? chances[k] : 0) + (k > 0 ? chances[k - 1] : 0)) / 2;
    chances = std::move(next);
  }
  double sum = 0;
  for (std::size_t below = ranks.low + 1; below <= ranks.high; ++below) sum += chances[below];
  return sum;
}

TEST(Median, IsTheOneInTheMiddleOrTheMeanOfTwo) {
  EXPECT_EQ(median(std::vector<double>{}), 0);
  EXPECT_EQ(median(std::vector<double>{3}), 3);
  EXPECT_EQ(median(std::vector<double>{9, 1, 5}), 5);
  EXPECT_EQ(median(std::vector<double>{9, 1, 5, 2}), 3.5);
  EXPECT_EQ(median(std::vector<double>{4, 4, 1, 4}), 4);
}

TEST(Median, LeavesTheValuesInTheirOrderUnlessInPlace) {
  std::vector<double> values{9, 1, 5, 2, 7};
  EXPECT_EQ(median(values), 5);
  EXPECT_EQ(values, (std::vector<double>{9, 1, 5, 2, 7}));
  EXPECT_EQ(median_in_place(values), 5);
  std::sort(values.begin(), values.end());
  EXPECT_EQ(values, (std::vector<double>{1, 2, 5, 7, 9}));
}

TEST(MedianRanks, HoldTheMedianWithNinetyFivePercentAndAreTheNarrowestThatDo) {
  for (std::size_t count = 6; count <= 200; ++count) {
    const auto ranks = median_ranks(count);
    ASSERT_TRUE(ranks) << count;
    EXPECT_EQ(ranks->low, count - 1 - ranks->high) << count;
    EXPECT_GE(coverage(count, *ranks), 0.95) << count;
    EXPECT_LT(coverage(count, {ranks->low + 1, ranks->high - 1}), 0.95) << count;
  }
}

TEST(MedianRanks, OfFewValuesThereAreNone) {
  for (std::size_t count = 0; count < 6; ++count) EXPECT_FALSE(median_ranks(count)) << count;
}

TEST(MedianRanks, OfManyValuesAreThoseOfTheNormalDistribution) {
  const auto ranks = median_ranks(100000);
  ASSERT_TRUE(ranks);
  EXPECT_NEAR(static_cast<double>(ranks->low), 50000 - 1.96 * std::sqrt(100000.0) / 2, 2);
}

TEST(Student, IsWhatTablesSay) {
  EXPECT_NEAR(student_t_975(1), 12.706, 0.001);
  EXPECT_NEAR(student_t_975(2), 4.303, 0.001);
  EXPECT_NEAR(student_t_975(3), 3.182, 0.01);
  EXPECT_NEAR(student_t_975(4), 2.776, 0.005);
  EXPECT_NEAR(student_t_975(9), 2.262, 0.001);
  EXPECT_NEAR(student_t_975(30), 2.042, 0.001);
  EXPECT_NEAR(student_t_975(1e9), 1.960, 0.001);
  EXPECT_NEAR(student_t_975(0), 12.706, 0.001);
  EXPECT_NEAR(student_t_995(1), 63.657, 0.001);
  EXPECT_NEAR(student_t_995(3), 5.841, 0.001);
  EXPECT_NEAR(student_t_995(4), 4.604, 0.02);
  EXPECT_NEAR(student_t_995(10), 3.169, 0.001);
  EXPECT_NEAR(student_t_995(1e9), 2.576, 0.001);
}

}  // namespace
}  // namespace aisp::base
