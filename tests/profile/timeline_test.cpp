// SPDX-License-Identifier: Apache-2.0
#include "profile/audit.hpp"

#include <gtest/gtest.h>

namespace aisp::profile {
namespace {

Activity activity_of(Activity::Kind kind, std::uint64_t start_ns, std::uint64_t end_ns, std::uint32_t stream, int device = 0) {
  Activity activity{.kind = kind, .start_ns = start_ns, .end_ns = end_ns, .device = device, .stream = stream};
  activity.over_link = kind == Activity::Kind::memcpy;
  return activity;
}
Activity kernel_from(std::uint64_t start_ns, std::uint64_t end_ns, std::uint32_t stream = 7, int device = 0) {
  return activity_of(Activity::Kind::kernel, start_ns, end_ns, stream, device);
}
Activity copy_from(std::uint64_t start_ns, std::uint64_t end_ns, std::uint32_t stream = 8) {
  return activity_of(Activity::Kind::memcpy, start_ns, end_ns, stream);
}
Activity copy_inside(std::uint64_t start_ns, std::uint64_t end_ns) {
  Activity inside = copy_from(start_ns, end_ns);
  inside.over_link = false;
  return inside;
}
Activity memset_from(std::uint64_t start_ns, std::uint64_t end_ns) {
  return activity_of(Activity::Kind::memset, start_ns, end_ns, 7);
}

TEST(Timeline, NothingIsNothing) {
  const Timeline nothing = timeline_of({});
  EXPECT_EQ(nothing.span_ns, 0u);
  EXPECT_EQ(nothing.busy_ns, 0u);
  EXPECT_EQ(nothing.kernels, 0u);
}

TEST(Timeline, OneStreamOverlapsNothing) {
  const Timeline one = timeline_of({copy_from(100, 200), kernel_from(200, 500), copy_from(510, 600)});
  EXPECT_EQ(one.span_ns, 500u);
  EXPECT_EQ(one.busy_ns, 490u);
  EXPECT_EQ(one.link_ns, 190u);
  EXPECT_EQ(one.hidden_ns, 0u) << "what only touches does not overlap";
  EXPECT_EQ(one.kernels_ns, one.kernel_ns);
}

TEST(Timeline, CopiesAreHiddenWhereAKernelRuns) {
  const Timeline half = timeline_of({copy_from(0, 100), kernel_from(50, 150)});
  EXPECT_EQ(half.link_ns, 100u);
  EXPECT_EQ(half.hidden_ns, 50u);
  const Timeline nested = timeline_of({copy_from(40, 60), kernel_from(0, 100)});
  EXPECT_EQ(nested.hidden_ns, nested.link_ns);
  const Timeline around = timeline_of({copy_from(0, 100), kernel_from(10, 20), kernel_from(30, 40), kernel_from(35, 50)});
  EXPECT_EQ(around.hidden_ns, 30u) << "time under two kernels counts once";
}

TEST(Timeline, CopiesInBothDirectionsShareTheirTime) {
  const Timeline both = timeline_of({copy_from(0, 100, 8), copy_from(50, 150, 9), kernel_from(100, 150)});
  EXPECT_EQ(both.copies, 2u);
  EXPECT_EQ(both.link_ns, 150u);
  EXPECT_EQ(both.hidden_ns, 50u);
}

TEST(Timeline, CopiesInsideAGpuUseNoLink) {
  const Timeline inside = timeline_of({copy_inside(0, 100), kernel_from(0, 100)});
  EXPECT_EQ(inside.copies, 1u);
  EXPECT_EQ(inside.link_ns, 0u);
  EXPECT_EQ(inside.hidden_ns, 0u);
  EXPECT_EQ(inside.busy_ns, 100u) << "but they are work";
}

TEST(Timeline, KernelsAtOnceAddUpInOneTimeOnly) {
  const Timeline together = timeline_of({kernel_from(0, 100, 7), kernel_from(20, 120, 8), kernel_from(200, 300, 7)});
  EXPECT_EQ(together.kernels, 3u);
  EXPECT_EQ(together.kernels_ns, 300u);
  EXPECT_EQ(together.kernel_ns, 220u);
  EXPECT_EQ(together.busy_ns, 220u);
  EXPECT_EQ(together.span_ns, 300u);
}

TEST(Timeline, LongWorkMayEndLast) {
  const Timeline outlasting = timeline_of({kernel_from(10, 20), memset_from(0, 100), kernel_from(30, 40)});
  EXPECT_EQ(outlasting.span_ns, 100u);
  EXPECT_EQ(outlasting.busy_ns, 100u) << "memsets are work too";
  EXPECT_EQ(outlasting.kernel_ns, 20u);
}

TEST(Timeline, WorkOfAnotherGpuIsWork) {
  const Timeline two = timeline_of({kernel_from(0, 100, 7, 0), kernel_from(50, 150, 7, 1)});
  EXPECT_EQ(two.busy_ns, 150u);
  EXPECT_EQ(two.kernels_ns, 200u);
}

}  // namespace
}  // namespace aisp::profile
