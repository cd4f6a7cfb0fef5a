// SPDX-License-Identifier: Apache-2.0
#include "profile/ranges.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "base/system/clock.hpp"

namespace aisp::profile {
namespace {

// The best of many short batches, as the machine may be busy: to look for a tool takes microseconds.
TEST(Ranges, CostNothingWhenNoToolListens) {
  if (std::getenv("NVTX_INJECTION64_PATH") != nullptr) GTEST_SKIP() << "a tool listens";
  constexpr int ranges = 100;
  double best_s = std::numeric_limits<double>::infinity();
  push_range("the first call looks for a tool");
  pop_range();
  for (int batch = 0; batch < 2000; ++batch) {
    const double start_s = base::monotonic_s();
    for (int i = 0; i < ranges; ++i) {
      push_range("range");
      mark("mark");
      pop_range();
    }
    best_s = std::min(best_s, base::monotonic_s() - start_s);
  }
  EXPECT_LT(best_s / ranges, 500e-9) << "seconds a range with a mark in it";
}

TEST(RangeLog, RemembersRangesAndMarksInTheOrderOfTheirStart) {
  std::uint64_t now_ns = 0;
  RangeLog log{[&] { return now_ns += 10; }};
  log.push("outer");
  log.push("inner");
  log.mark("here");
  log.pop();
  log.pop();
  log.pop();  // one too many
  log.push("left open");
  const std::vector<NamedRange> ranges = log.take();
  ASSERT_EQ(ranges.size(), 4u);
  EXPECT_EQ(ranges[0].name, "outer");
  EXPECT_EQ(ranges[0].start_ns, 10u);
  EXPECT_EQ(ranges[0].end_ns, 50u);
  EXPECT_EQ(ranges[1].depth, 1);
  EXPECT_EQ(ranges[1].end_ns, 40u);
  EXPECT_EQ(ranges[2].start_ns, ranges[2].end_ns) << "a mark";
  EXPECT_GT(ranges[3].end_ns, ranges[3].start_ns) << "ended when it was taken";
  EXPECT_THAT(log.take(), testing::IsEmpty());
}

}  // namespace
}  // namespace aisp::profile
