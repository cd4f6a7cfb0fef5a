// SPDX-License-Identifier: Apache-2.0
#include "evidence/quantities.hpp"

#include <gtest/gtest.h>

namespace aisp::evidence {
namespace {

// The baseline takes 10 ms, and no variant can take less than 2 ms.
PairResult pair_of(double speedup) {
  PairResult pair;
  pair.lesson = "tiled";
  pair.variants.resize(2);
  pair.variants[0] = {.name = "direct", .role = VariantRole::baseline};
  pair.variants[0].timing.emplace().summary.median = 10;
  pair.variants[1].name = "tiled";
  pair.variants[1].speedup = Speedup{speedup, speedup / 2, speedup * 2, Verdict::faster};
  pair.variants[1].floor = Floor{.milliseconds = 2};
  return pair;
}

std::optional<Range> gap_of(const PairResult& pair) { return gap_closed(pair, pair.variants[1]); }

TEST(GapClosed, IsThePartOfTheWayToTheLowerBound) {
  const auto half = gap_of(pair_of(2));
  ASSERT_TRUE(half);
  EXPECT_DOUBLE_EQ(half->value, 100 * 5.0 / 8);
  EXPECT_DOUBLE_EQ(half->low, 0);
  EXPECT_DOUBLE_EQ(half->high, 100 * 7.5 / 8);
  EXPECT_DOUBLE_EQ(gap_of(pair_of(5))->value, 100);
  EXPECT_DOUBLE_EQ(gap_of(pair_of(5.2))->value, 100) << "a little faster than a measured ceiling is at the limit";
  EXPECT_LT(gap_of(pair_of(0.9))->value, 0);
}

TEST(GapClosed, SaysNothingWhereThereIsNoGap) {
  PairResult pair = pair_of(1.04);
  pair.variants[1].floor->milliseconds = 9.6;
  EXPECT_FALSE(gap_of(pair)) << "the baseline is at the limit";
  pair.variants[1].floor.reset();
  EXPECT_FALSE(gap_of(pair));
  pair = pair_of(2);
  pair.judged_by = "bytes_moved";
  EXPECT_FALSE(gap_of(pair));
  pair = pair_of(2);
  pair.status = Status::failed;
  EXPECT_FALSE(gap_of(pair));
}

}  // namespace
}  // namespace aisp::evidence
