// SPDX-License-Identifier: Apache-2.0
#include "base/system/entropy.hpp"

#include <gtest/gtest.h>

#include <set>

namespace aisp::base {
namespace {

TEST(Entropy, GivesOtherBitsEachTimeInBothHalves) {
  std::set<std::uint64_t> low, high;
  for (int i = 0; i < 16; ++i) {
    const std::uint64_t bits = entropy();
    low.insert(bits & 0xFFFFFFFF);
    high.insert(bits >> 32);
  }
  EXPECT_GT(low.size(), 14u);
  EXPECT_GT(high.size(), 14u);
}

}  // namespace
}  // namespace aisp::base
