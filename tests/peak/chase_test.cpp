// SPDX-License-Identifier: Apache-2.0
#include "peak/levels/chase.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace aisp::peak {
namespace {

TEST(Chase, VisitsEveryLineOnce) {
  for (const std::size_t bytes : {128u, 4096u, 8192u, 10240u}) {
    std::vector<std::uint64_t> order = chase_of_lines(bytes, 128, 4096, 1);
    std::ranges::sort(order);
    ASSERT_EQ(order.size(), bytes / 128);
    for (std::size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], i * 128);
  }
}

TEST(Chase, LeavesAWindowOnlyWhenAllOfItWasVisited) {
  constexpr std::size_t window = 4096, lines = window / 128;
  const std::vector<std::uint64_t> order = chase_of_lines(16 * window, 128, window, 2);
  std::set<std::uint64_t> windows;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const bool is_first = i % lines == 0;
    EXPECT_EQ(windows.insert(order[i] / window).second, is_first);
    EXPECT_EQ(order[i] / window, order[i / lines * lines] / window);
  }
  EXPECT_EQ(windows.size(), 16u);
}

TEST(Chase, FollowsNoPattern) {
  const std::vector<std::uint64_t> order = chase_of_lines(1 << 20, 128, 1 << 20, 3);
  std::size_t neighbours = 0;
  for (std::size_t i = 1; i < order.size(); ++i) neighbours += order[i] == order[i - 1] + 128 ? 1 : 0;
  EXPECT_LT(neighbours, 8u);
  EXPECT_EQ(order, chase_of_lines(1 << 20, 128, 1 << 20, 3)) << "the same seed, the same order";
  EXPECT_NE(order, chase_of_lines(1 << 20, 128, 1 << 20, 4));
}

TEST(Chase, TouchesOneLineOfEachPageAtAnotherPlace) {
  constexpr std::size_t page = 4096;
  const std::vector<std::uint64_t> order = chase_of_pages(64 * page, 64, page, 5);
  std::set<std::uint64_t> pages, places;
  for (const std::uint64_t at : order) {
    EXPECT_EQ(at % 64, 0u);
    pages.insert(at / page);
    places.insert(at % page);
  }
  EXPECT_EQ(pages.size(), 64u);
  EXPECT_EQ(*pages.rbegin(), 63u);
  EXPECT_GT(places.size(), 20u);
}

}  // namespace
}  // namespace aisp::peak
