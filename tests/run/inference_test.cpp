// SPDX-License-Identifier: Apache-2.0
#include "run/results/assemble.hpp"

#include <gtest/gtest.h>

namespace aisp::run {
namespace {

// Request 0: tokens after 10, 12 and 14 ms; request 1: after 30 and 38 ms. 50 ms, and 1 ms of the stopwatch's own.
measure::Sample sample() {
  measure::Sample sample;
  sample.raw_ms = 51;
  sample.marks = {{"", 0, 10}, {"", 0, 12}, {"named", 0, 13}, {"", 0, 14}, {"", 1, 30}, {"", 1, 38}};
  return sample;
}

TEST(Inference, TimesOfRequestsAndOfTokens) {
  const auto timing = inference_of({sample(), sample()}, 1, {}, {});
  ASSERT_TRUE(timing);
  EXPECT_EQ(timing->requests, 2u);
  EXPECT_EQ(timing->tokens, 5u);
  EXPECT_EQ(timing->ttft_ms.count, 4u);
  EXPECT_DOUBLE_EQ(timing->ttft_ms.mean, 20);
  EXPECT_DOUBLE_EQ(timing->tpot_ms.mean, 4);          // 2, 2 and 8
  EXPECT_DOUBLE_EQ(timing->request_tpot_ms.mean, 5);  // 2 and 8
  EXPECT_DOUBLE_EQ(timing->tokens_per_second, 100);
  EXPECT_FALSE(timing->goodput);
}

TEST(Inference, GoodputCountsRequestsThatMeetBothTargets) {
  const auto goodput = [](LatencyTargets targets) { return *inference_of({sample(), sample()}, 1, targets, {})->goodput; };
  EXPECT_EQ(goodput({.ttft_ms = 15}).good_requests, 2u);
  EXPECT_DOUBLE_EQ(goodput({.ttft_ms = 15}).percent, 50);
  EXPECT_DOUBLE_EQ(goodput({.ttft_ms = 15}).requests_per_second, 20);
  EXPECT_EQ(goodput({.ttft_ms = 100, .tpot_ms = 8}).good_requests, 4u) << "a target that is just met is met";
  EXPECT_EQ(goodput({.tpot_ms = 3}).good_requests, 2u);
  EXPECT_EQ(goodput({.ttft_ms = 5, .tpot_ms = 100}).good_requests, 0u);
}

TEST(Inference, ASingleTokenHasNoTimePerOutputToken) {
  measure::Sample single;
  single.raw_ms = 10;
  single.marks = {{"", 0, 4}};
  const auto timing = inference_of({single}, 0, {.tpot_ms = 1}, {});
  ASSERT_TRUE(timing);
  EXPECT_EQ(timing->tpot_ms.count, 0u);
  EXPECT_EQ(timing->goodput->good_requests, 1u);
}

TEST(Inference, NamedMarksAreNoTokens) {
  measure::Sample named;
  named.marks = {{"halfway", 0, 4}};
  EXPECT_FALSE(inference_of({named}, 0, {.ttft_ms = 1}, {}));
}

}  // namespace
}  // namespace aisp::run
