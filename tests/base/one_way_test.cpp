// SPDX-License-Identifier: Apache-2.0
#include "base/one_way.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace aisp::base {
namespace {

// The vector of the reference implementation for the message of the bytes 0 to 15 under the key of the same bytes.
TEST(OneWay, IsSipHash) { EXPECT_EQ(OneWay{0x0706050403020100}(0x0706050403020100, 0x0f0e0d0c0b0a0908), 0x3f2acc7f57c29bdb); }

TEST(OneWay, EveryPartOfItsArgumentCounts) {
  const OneWay of{42};
  EXPECT_NE(of(1, 0), of(0, 1));
  EXPECT_NE(of(1), OneWay{43}(1));
  EXPECT_EQ(of(7), of(7, 0));
}

TEST(OneWayRandom, IsAGeneratorThatItsSeedRepeats) {
  OneWayRandom random{5}, again{5}, other{6};
  std::vector<int> order(100), same(100), different(100);
  for (std::vector<int>* each : {&order, &same, &different}) std::iota(each->begin(), each->end(), 0);
  std::ranges::shuffle(order, random);
  std::ranges::shuffle(same, again);
  std::ranges::shuffle(different, other);
  EXPECT_EQ(order, same);
  EXPECT_NE(order, different);
  EXPECT_FALSE(std::ranges::is_sorted(order));
}

}  // namespace
}  // namespace aisp::base
