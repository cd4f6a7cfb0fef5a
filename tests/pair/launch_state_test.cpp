// SPDX-License-Identifier: Apache-2.0
#include "pair/launch_state.hpp"

#include <gtest/gtest.h>

#include <array>

namespace aisp::pair {
namespace {

TEST(LaunchState, TokensOfABatchAreThereAtOneTime) {
  LaunchState launch{false};
  launch.start_recording();
  launch.token(4);
  launch.tokens(std::array{4, 9});
  launch.tokens({});
  const auto marks = launch.stop_recording(nullptr);
  ASSERT_EQ(marks.size(), 3u);
  EXPECT_EQ(marks[0].request, 4);
  EXPECT_EQ(marks[1].request, 4);
  EXPECT_EQ(marks[2].request, 9);
  EXPECT_EQ(marks[1].at_ms, marks[2].at_ms);
  EXPECT_GT(marks[1].at_ms, marks[0].at_ms);
}

}  // namespace
}  // namespace aisp::pair
