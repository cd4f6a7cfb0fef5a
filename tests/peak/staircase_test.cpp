// SPDX-License-Identifier: Apache-2.0
#include "peak/levels/levels.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

namespace aisp::peak {
namespace {

using testing::IsEmpty;

constexpr double kib = 1024, mib = 1024 * kib;

struct Step {
  double until_bytes;  // the level holds so much
  double ns;
};

// Rises from level to level over `octaves`, as a cache does that does not drop the oldest line first; `noise` is relative.
std::vector<ChasePoint> staircase(const std::vector<Step>& steps, double noise, double octaves, unsigned seed,
                                  std::size_t first = 16384) {
  std::mt19937_64 random{seed};
  std::normal_distribution<double> normal{0, 1};
  std::vector<ChasePoint> points;
  for (const std::size_t bytes : chase_sizes(first, std::size_t{1} << 30, 8, first)) {
    const auto size = static_cast<double>(bytes);
    double ns = steps.front().ns;
    for (std::size_t i = 0; i + 1 < steps.size(); ++i) {
      const double way = octaves > 0 ? std::log2(size / steps[i].until_bytes) / octaves : size > steps[i].until_bytes ? 1 : 0;
      ns += std::clamp(way, 0.0, 1.0) * (steps[i + 1].ns - steps[i].ns);
    }
    ns *= std::exp(noise * normal(random));
    points.push_back({.bytes = size, .ns = ns, .cycles = 1.8 * ns, .bytes_s = 1e12 / ns});
  }
  return points;
}

const std::vector<Step> gpu = {{224 * kib, 20}, {32 * mib, 140}, {1e12, 480}};

void expect_levels(const std::vector<MemoryLevel>& levels, const std::vector<Step>& steps, double octave_tolerance) {
  ASSERT_EQ(levels.size(), steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    EXPECT_NEAR(levels[i].ns / steps[i].ns, 1, 0.05);
    EXPECT_NEAR(levels[i].cycles / levels[i].ns, 1.8, 0.1);
    if (i + 1 == steps.size()) {
      EXPECT_EQ(levels[i].beyond_bytes, 0);
    } else {
      EXPECT_LT(std::abs(std::log2(levels[i].held_bytes / steps[i].until_bytes)), octave_tolerance) << i;
      EXPECT_GT(levels[i].beyond_bytes, levels[i].held_bytes);
    }
  }
}

TEST(Staircase, SharpStepsAreFoundWhereTheyAre) { expect_levels(find_levels(staircase(gpu, 0, 0, 1)), gpu, 0.2); }

TEST(Staircase, NoiseMovesNothing) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    expect_levels(find_levels(staircase(gpu, 0.02, 0, seed)), gpu, 0.3);
  }
}

TEST(Staircase, AWayBetweenTwoLevelsIsNone) {
  for (const double octaves : {0.5, 1.0, 2.0})
    for (unsigned seed = 1; seed <= 10; ++seed) {
      SCOPED_TRACE(testing::Message() << octaves << " octaves, seed " << seed);
      // A fifth of a long distance still counts as held.
      expect_levels(find_levels(staircase(gpu, 0.01, octaves, seed)), gpu, 0.3 + 0.2 * octaves);
    }
}

TEST(Staircase, OnePointThatIsFarOffIsNoLevel) {
  std::vector<ChasePoint> points = staircase(gpu, 0.01, 0, 3);
  points[20].ns *= 4;
  points[60].ns /= 3;
  expect_levels(find_levels(points), gpu, 0.3);
}

TEST(Staircase, FourLevelsOfAHost) {
  const std::vector<Step> host = {{32 * kib, 1.1}, {mib, 3.8}, {32 * mib, 11}, {1e12, 95}};
  expect_levels(find_levels(staircase(host, 0.02, 0, 5, 1024)), host, 0.3);
}

TEST(Staircase, WithoutStepsIsOneLevel) {
  const std::vector<MemoryLevel> levels = find_levels(staircase({{1e12, 100}}, 0.03, 0, 7));
  ASSERT_EQ(levels.size(), 1u);
  EXPECT_EQ(levels[0].beyond_bytes, 0);
  EXPECT_THAT(find_levels({}), IsEmpty());
  EXPECT_THAT(find_levels({{.bytes = 1, .ns = 1}, {.bytes = 2, .ns = 1}}), IsEmpty());
}

TEST(Staircase, LevelsAreCalledByTheNearestStatedSize) {
  std::vector<MemoryLevel> levels = find_levels(staircase(gpu, 0.01, 0, 9));
  const std::vector<Stated> stated = {{"L1", 256 * kib, "guide"}, {"L2", 50 * mib, "sheet"}, {"L3", 900 * mib, "nobody"}};
  name_levels(levels, stated, "HBM");
  EXPECT_EQ(levels[0].name, "L1");
  EXPECT_EQ(levels[1].name, "L2");
  EXPECT_EQ(levels[2].name, "HBM");
  EXPECT_EQ(stated_of(levels[1], stated)->source, "sheet");
  EXPECT_EQ(stated_of(levels[2], stated), nullptr);
  std::vector<MemoryLevel> others = find_levels(staircase(gpu, 0.01, 0, 9));
  name_levels(others, {{"L1", 64 * kib, ""}}, "HBM");
  EXPECT_EQ(others[0].name, "") << "more than a factor of two away";
}

TEST(TwoKinds, AreSeenWhereTheyAreTwo) {
  std::mt19937_64 random{11};
  std::normal_distribution<double> near{210, 6}, far{290, 8};
  std::vector<double> values;
  for (int i = 0; i < 600; ++i) values.push_back(near(random));
  for (int i = 0; i < 400; ++i) values.push_back(far(random));
  const auto kinds = two_kinds(values);
  ASSERT_TRUE(kinds);
  EXPECT_NEAR(kinds->near, 210, 2);
  EXPECT_NEAR(kinds->far, 290, 2);
  EXPECT_NEAR(kinds->far_share, 0.4, 0.01);
}

TEST(TwoKinds, AreNotMadeOfOne) {
  std::mt19937_64 random{13};
  std::normal_distribution<double> one{250, 20};
  std::uniform_real_distribution<double> wide{200, 300};
  std::vector<double> normal, uniform, rare(1000, 200.0), equal(1000, 200.0);
  for (int i = 0; i < 1000; ++i) {
    normal.push_back(one(random));
    uniform.push_back(wide(random));
  }
  for (int i = 0; i < 20; ++i) rare[static_cast<std::size_t>(i)] = 900;
  EXPECT_FALSE(two_kinds(normal));
  EXPECT_FALSE(two_kinds(uniform));
  EXPECT_FALSE(two_kinds(rare)) << "interrupts";
  EXPECT_FALSE(two_kinds(equal));
  EXPECT_FALSE(two_kinds({}));
}

TEST(ChaseSizes, RiseByEqualFactorsInMultiples) {
  const std::vector<std::size_t> sizes = chase_sizes(16384, 1 << 20, 8, 16384);
  EXPECT_EQ(sizes.front(), 16384u);
  EXPECT_EQ(sizes.back(), std::size_t{1} << 20);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(sizes[i] % 16384, 0u);
    EXPECT_TRUE(i == 0 || sizes[i] > sizes[i - 1]);
  }
}

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
