// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <aisp/ragged.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

namespace aisp {
namespace {

constexpr std::size_t many = 200000;

std::map<std::int64_t, double> shares(const Pattern& pattern) {
  std::map<std::int64_t, double> found;
  for (std::size_t i = 0; i < many; ++i) found[pattern_value<std::int64_t>(pattern, 11, i)] += 1.0 / many;
  return found;
}

TEST(Table, CategoriesComeByTheirWeights) {
  const auto found = shares(categorical({{-3, 1}, {7, 2}, {100, 5}, {9, 0}}));
  ASSERT_EQ(found.size(), 3u);
  EXPECT_NEAR(found.at(-3), 0.125, 0.004);
  EXPECT_NEAR(found.at(7), 0.25, 0.005);
  EXPECT_NEAR(found.at(100), 0.625, 0.006);
}

TEST(Table, ZipfFallsWithTheRank) {
  constexpr std::int64_t words = 50000;
  const auto found = shares(zipf(words));
  const double first = 1 / (std::log(static_cast<double>(words)) + 0.5772);
  EXPECT_NEAR(found.at(0), first, 0.003);
  EXPECT_NEAR(found.at(1), first / 2, 0.003);
  EXPECT_NEAR(found.at(9), first / 10, 0.002);
  double tail = 0;
  for (const auto& [word, share] : found) {
    EXPECT_GE(word, 0);
    EXPECT_LT(word, words);
    if (word >= 1000) tail += share;
  }
  EXPECT_NEAR(tail, first * std::log(50.0), 0.01);
}

TEST(Table, DegreesFollowAPowerLaw) {
  double mean = 0;
  const auto found = shares(power_law(1, 1 << 20, 2.5));
  for (const auto& [degree, share] : found) mean += static_cast<double>(std::min<std::int64_t>(degree, 1000)) * share;
  EXPECT_NEAR(found.at(1), 1 / 1.34149, 0.005);  // zeta(2.5)
  EXPECT_NEAR(mean, 2.612 / 1.341, 0.12);        // zeta(1.5) / zeta(2.5), less what is beyond 1000
  EXPECT_GT(found.rbegin()->first, 500) << "hubs";
}

TEST(Table, LengthsAreLogNormal) {
  std::vector<std::int64_t> drawn;
  const Pattern lengths = log_normal(900, 1, 1, 4096);
  for (std::size_t i = 0; i < many; ++i) drawn.push_back(pattern_value<std::int64_t>(lengths, 5, i));
  std::ranges::sort(drawn);
  EXPECT_GE(drawn.front(), 1);
  EXPECT_LE(drawn.back(), 4096);
  EXPECT_NEAR(static_cast<double>(drawn[many / 2]), 900, 30);
  EXPECT_NEAR(static_cast<double>(drawn[many * 16 / 100]), 900 / std::exp(0.9945), 25);
}

TEST(Table, TextIsOfLettersAndBlanks) {
  const auto found = shares(text());
  EXPECT_NEAR(found.at(' ') / found.at('e'), 180.0 / 102, 0.1);
  for (const auto& [byte, share] : found) EXPECT_TRUE(byte == '\n' || (byte >= ' ' && byte <= 'z')) << byte;
}

TEST(Table, WhatIsNoTableIsRefused) {
  EXPECT_THROW(categorical({}), std::logic_error);
  EXPECT_THROW(categorical({{1, 0}}), std::logic_error);
  EXPECT_THROW(categorical({{1, -1}, {2, 2}}), std::logic_error);
  EXPECT_THROW(zipf(0), std::logic_error);
  EXPECT_THROW(power_law(0, 5, 2), std::logic_error);
  EXPECT_THROW(log_normal(0, 1, 1, 5), std::logic_error);
}

constexpr std::size_t rows = 64, columns = 1000;
constexpr Axis by_row{columns, rows}, by_column{1, columns};

TEST(Changes, OutlierChannelsChangePlacesWithTheSeed) {
  const Pattern pattern = constant(1).times(20, 90, drawn(by_column, 8));
  std::set<std::set<std::size_t>> places;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    std::set<std::size_t> outliers;
    float before = 0;
    for (std::size_t c = 0; c < columns; ++c) {
      const auto value = pattern_value<float>(pattern, seed, c);
      EXPECT_EQ(value, pattern_value<float>(pattern, seed, 17 * columns + c)) << "a channel is one in every row";
      if (value == 1) continue;
      EXPECT_EQ(value, before == 0 ? 20 : before + 10) << "the eight factors go from 20 to 90";
      before = value;
      outliers.insert(c);
    }
    EXPECT_EQ(outliers.size(), 8u);
    places.insert(outliers);
  }
  EXPECT_EQ(places.size(), 4u);
}

TEST(Changes, RampsAndStaircasesFollowTheirAxis) {
  const Pattern ramp = constant(2).times(1, 8, all_of(by_row), at(by_column, 3));
  EXPECT_EQ(pattern_value<float>(ramp, 1, 3), 2);
  EXPECT_EQ(pattern_value<float>(ramp, 1, 63 * columns + 3), 16);
  EXPECT_NEAR(pattern_value<float>(ramp, 1, 9 * columns + 3), 4, 1e-6);
  EXPECT_EQ(pattern_value<float>(ramp, 1, 63 * columns + 4), 2) << "only of that column";
  const Pattern stairs = constant(1).plus_steps(12, 16, all_of(by_row)).set(-7, at(by_row, 40, 2));
  EXPECT_EQ(pattern_value<float>(stairs, 1, 15 * columns), 1);
  EXPECT_EQ(pattern_value<float>(stairs, 1, 16 * columns), 13);
  EXPECT_EQ(pattern_value<float>(stairs, 1, 63 * columns + 999), 37);
  EXPECT_EQ(pattern_value<float>(stairs, 1, 39 * columns), 25);
  EXPECT_EQ(pattern_value<float>(stairs, 1, 41 * columns), -7);
  EXPECT_EQ(pattern_value<float>(stairs, 1, 42 * columns), 25);
}

TEST(Changes, OnAGridAllValuesAreMultiplesAndTheMeanStays) {
  struct Drawn {
    Pattern pattern;
    float low, high;
    double mean, deviation;
  };
  constexpr float step = 0.25f;
  // Rounding to a grid adds the variance of a uniform error, step^2 / 12.
  for (const Drawn& drawn : {Drawn{uniform(-4, 4), -4, 4, 0, std::hypot(8, step) / std::sqrt(12)},
                             Drawn{normal(1, 2), -9, 11, 1, std::hypot(2, step / std::sqrt(12))}}) {
    const Pattern pattern = drawn.pattern.on_grid(step);
    float sum = 0, backwards = 0;
    double squares = 0;
    std::set<float> found;
    for (std::size_t i = 0; i < many; ++i) {
      const auto value = pattern_value<float>(pattern, 3, i);
      ASSERT_EQ(std::remainder(value, step), 0);
      ASSERT_LE(std::abs(value - pattern_value<float>(drawn.pattern, 3, i)), step / 2);
      found.insert(value);
      sum += value;
      backwards += pattern_value<float>(pattern, 3, many - 1 - i);
      squares += (value - drawn.mean) * (value - drawn.mean);
    }
    EXPECT_EQ(sum, backwards) << "every sum is exact";
    EXPECT_GE(*found.begin(), drawn.low);
    EXPECT_LE(*found.rbegin(), drawn.high);
    EXPECT_NEAR(sum / many, drawn.mean, 0.02);
    EXPECT_NEAR(std::sqrt(squares / many), drawn.deviation, 0.01);
  }
}

TEST(Changes, AGridMayBeOfSomePlacesAndOfWholeNumbers) {
  const Pattern pattern = uniform(0, 1).on_grid(0.5f, at(by_row, 2));
  EXPECT_EQ(pattern_value<float>(pattern, 1, 5), pattern_value<float>(uniform(0, 1), 1, 5));
  std::set<float> of_row;
  for (std::size_t c = 0; c < columns; ++c) of_row.insert(pattern_value<float>(pattern, 1, 2 * columns + c));
  EXPECT_EQ(of_row, (std::set<float>{0, 0.5f, 1}));
  for (const auto& [value, share] : shares(integers(0, 100).on_grid(10))) EXPECT_EQ(value % 10, 0) << value;
}

TEST(Changes, OfWholeNumbersLeaveTheOthersExact) {
  const Pattern pattern = integers((1ll << 60) + 1, (1ll << 60) + 1).set(0, at(by_row, 1));
  EXPECT_EQ(pattern_value<std::int64_t>(pattern, 1, 0), (1ll << 60) + 1);
  EXPECT_EQ(pattern_value<std::int64_t>(pattern, 1, columns), 0);
  EXPECT_TRUE(std::isnan(pattern_value<float>(normal(0, 1).set(NAN, at(by_row, 0)), 1, 5)));
}

TEST(Changes, AreSixAtMost) {
  Pattern pattern = uniform(0, 1);
  for (int i = 0; i < 6; ++i) pattern = pattern.times(2, at(by_row, 0));
  EXPECT_THROW(pattern.times(2, at(by_row, 0)), std::logic_error);
}

TEST(Ragged, OffsetsGrowByTheLengthsAndStayBelowTheTotal) {
  std::vector<std::uint32_t> offsets(65), others(65);
  const HostFill<std::uint32_t> fill = ragged_offsets<std::uint32_t>(log_normal(900, 1, 1, 4096), 40000, {0, 1, 4096});
  fill(offsets, 3);
  fill(others, 4);
  EXPECT_NE(offsets, others);
  EXPECT_EQ(offsets.front(), 0u);
  EXPECT_LE(offsets.back(), 40000u);
  EXPECT_GT(offsets.back(), 39000u) << "64 times 1300 do not fit";
  std::multiset<std::uint32_t> lengths, in_another_order;
  for (std::size_t i = 0; i < 64; ++i) {
    ASSERT_LE(offsets[i], offsets[i + 1]);
    lengths.insert(offsets[i + 1] - offsets[i]);
    in_another_order.insert(others[i + 1] - others[i]);
  }
  EXPECT_EQ(lengths, in_another_order) << "every draw is the same work";
  EXPECT_GE(lengths.count(0), 1u);
  EXPECT_GE(lengths.count(1), 1u);
  EXPECT_GE(lengths.count(4096), 1u);
}

TEST(Ragged, LengthsThatAreAlwaysThereNeedSegments) {
  std::vector<int> offsets(3);
  EXPECT_THROW(ragged_offsets<int>(constant(1), 10, {1, 2, 3})(offsets, 1), std::logic_error);
  ragged_offsets<int>(constant(1), 10, {4, 3})(offsets, 1);
  EXPECT_EQ(offsets.back(), 7);
}

TEST(Ragged, RowsOfAGraphHaveExactlyItsEdges) {
  std::vector<std::int64_t> offsets(10001);
  row_offsets<std::int64_t>(power_law(1, 5000, 2), 123457)(offsets, 9);
  EXPECT_EQ(offsets.front(), 0);
  EXPECT_EQ(offsets.back(), 123457);
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < 10000; ++i) {
    ASSERT_LE(offsets[i], offsets[i + 1]);
    longest = std::max(longest, offsets[i + 1] - offsets[i]);
  }
  EXPECT_GT(longest, 2000);
}

}  // namespace
}  // namespace aisp
