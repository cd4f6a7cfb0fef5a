// SPDX-License-Identifier: Apache-2.0
#include "measure/sample.hpp"

#include <gtest/gtest.h>

namespace aisp::measure {
namespace {

std::vector<Sample> samples_of(const std::vector<std::pair<double, std::optional<double>>>& host_and_wait_ms) {
  std::vector<Sample> samples;
  for (const auto& [host_ms, wait_ms] : host_and_wait_ms) samples.push_back({.host_ms = host_ms, .cpu_wait_ms = wait_ms});
  return samples;
}

TEST(OwnHostMs, IsTheMedianOfThoseThatNobodyDisturbed) {
  EXPECT_DOUBLE_EQ(own_host_ms(samples_of({{10, 0}, {11, 1}, {12, 0.5}, {90, 80}})), 11);
}

TEST(OwnHostMs, TakesWaitsOffWhereMostAreDisturbed) {
  // A baseline that slows down, beside two busy loops: its fast samples alone went undisturbed.
  EXPECT_DOUBLE_EQ(own_host_ms(samples_of({{1, 0}, {1, 0}, {30, 10}, {35, 15}, {40, 20}})), 20);
}

TEST(OwnHostMs, IsOfSamplesWhoseWaitIsKnown) {
  EXPECT_DOUBLE_EQ(own_host_ms(samples_of({{5, std::nullopt}, {7, 0}})), 7);
  EXPECT_DOUBLE_EQ(own_host_ms(samples_of({{5, std::nullopt}})), 0);
  EXPECT_DOUBLE_EQ(own_host_ms({}), 0);
}

// Threads that wait at the same time wait longer than the sample took.
TEST(OwnHostMs, IsNeverNegative) { EXPECT_DOUBLE_EQ(own_host_ms(samples_of({{10, 25}, {10, 25}})), 0); }

}  // namespace
}  // namespace aisp::measure
