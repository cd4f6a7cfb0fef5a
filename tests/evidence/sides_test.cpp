// SPDX-License-Identifier: Apache-2.0
#include "evidence/comparison/comparison.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace aisp::evidence {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Forty samples around the median, so that the interval has a width.
Timing around(double median_ms) {
  Timing timing;
  for (int i = 0; i < 40; ++i) timing.raw_times_ms.push_back(median_ms * (1 + 0.0005 * (i - 19.5)));
  timing.summary.median = median_ms;
  return timing;
}

// One process of one side.
RunRecord process(double baseline_ms, double tiled_ms, Status status = Status::passed) {
  PairResult pair{.target = "ch07:transpose", .chapter = "ch07", .name = "transpose", .status = status};
  VariantResult first{.name = "plain", .role = VariantRole::baseline}, second{.name = "tiled", .role = VariantRole::optimized};
  first.timing = around(baseline_ms);
  second.timing = around(tiled_ms);
  const double ratio = baseline_ms / tiled_ms;
  second.speedup = Speedup{ratio, ratio * 0.998, ratio * 1.002, Verdict::faster};
  pair.variants = {first, second};
  return {.folder = "run", .manifest = {}, .pairs = {pair}};
}

std::set<std::string> slower(const std::vector<RunRecord>& before, const std::vector<RunRecord>& after) {
  return slower_targets(compare_sides(before, after, 0.05));
}

TEST(Sides, WhatBothProcessesLostIsSlower) {
  EXPECT_THAT(slower({process(4, 1), process(4.01, 1.002)}, {process(4, 1.1), process(4.01, 1.11)}),
              ElementsAre("ch07:transpose"));
}

TEST(Sides, EqualCodeIsQuiet) {
  EXPECT_THAT(slower({process(4, 1), process(4.01, 1.002)}, {process(4, 1.001), process(4.01, 1)}), IsEmpty());
}

TEST(Sides, ProcessesThatDifferAmongThemselvesExcuseTheOther) {
  EXPECT_THAT(slower({process(4, 1), process(4, 1.12)}, {process(4, 1.1), process(4, 1.1)}), IsEmpty());
  EXPECT_THAT(slower({process(4, 1), process(4, 1)}, {process(4, 1.12), process(4, 1)}), IsEmpty());
}

TEST(Sides, AFasterBaselineMakesNothingSlower) {
  EXPECT_THAT(slower({process(4, 1), process(4, 1)}, {process(3, 1), process(3, 1)}), IsEmpty());
  EXPECT_THAT(slower({process(4, 1), process(4, 1)}, {process(5, 1), process(5, 1)}), ElementsAre("ch07:transpose"));
}

TEST(Sides, IntervalsAreOverTheProcesses) {
  const RunComparison comparison = compare_sides({process(4, 1), process(4, 1.1)}, {process(4, 1), process(4, 1)}, 0.05);
  const auto tiled = std::find_if(comparison.metrics.begin(), comparison.metrics.end(),
                                  [](const MetricChange& m) { return m.variant == "tiled" && m.metric == "time"; });
  ASSERT_NE(tiled, comparison.metrics.end());
  EXPECT_NEAR(tiled->before.value, 1.05, 1e-9);
  EXPECT_LT(tiled->before.low, 1);
  EXPECT_GT(tiled->before.high, 1.1);
}

TEST(Sides, AFailureInTheSecondProcessIsSeen) {
  const RunComparison comparison =
      compare_sides({process(4, 1), process(4, 1)}, {process(4, 1), process(4, 1, Status::crashed)}, 0.05);
  ASSERT_EQ(comparison.statuses.size(), 1u);
  EXPECT_EQ(comparison.statuses[0].after, Status::crashed);
}

TEST(Sides, APairOfOneSideIsNamed) {
  RunRecord empty = process(1, 1);
  empty.pairs.clear();
  EXPECT_THAT(compare_sides({empty}, {process(4, 1)}, 0.05).only_after, ElementsAre("ch07:transpose"));
}

}  // namespace
}  // namespace aisp::evidence
