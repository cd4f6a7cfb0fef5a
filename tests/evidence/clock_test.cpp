// SPDX-License-Identifier: Apache-2.0
#include "evidence/result.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace aisp::evidence {
namespace {

GpuState at(int mhz) {
  GpuState state;
  state.sm_clock_mhz = mhz;
  return state;
}

TEST(Clock, MedianOfTheStatesThatTellIt) {
  EXPECT_EQ(median_sm_clock_mhz(std::vector{at(1980), at(0), at(1620), at(1700)}), 1700);
  EXPECT_EQ(median_sm_clock_mhz(std::vector{at(1980), at(1620)}), 1800);
  EXPECT_EQ(median_sm_clock_mhz(std::vector{at(0)}), std::nullopt);
  EXPECT_EQ(median_sm_clock_mhz({}), std::nullopt);
}

}  // namespace
}  // namespace aisp::evidence
