// SPDX-License-Identifier: Apache-2.0
#include "run/results/declarations.hpp"

#include <gtest/gtest.h>

namespace aisp::run {
namespace {

std::optional<std::string> with(double limit, double error, Tolerance tolerance, std::size_t samples = 64) {
  evidence::VariantResult variant{.name = "tiled"};
  variant.accuracy = evidence::Accuracy{.relative_l2 = error, .limit_relative_l2 = limit, .samples = samples};
  return loose_limit(variant, tolerance);
}

TEST(LooseLimit, AThousandTimesTheErrorIsTheMost) {
  EXPECT_FALSE(with(1e-3, 1.01e-6, within(1e-3)));
  EXPECT_EQ(with(1e-3, 4e-7, within(1e-3)),
            "tiled: its tolerance allows a relative L2 error of 0.001, and 4e-07 was found; a limit near that would catch more");
  EXPECT_TRUE(with(1e-3, 0, within(1e-3)));
}

TEST(LooseLimit, OnlyOfLimitsThatThePairChose) {
  EXPECT_FALSE(with(1e-3, 0, automatic));
  EXPECT_FALSE(with(1e-3, 0, reduction_of(4096)));
  EXPECT_FALSE(with(0, 0, exact));
  EXPECT_FALSE(with(1e-3, 0, within(1e-3), 0)) << "nothing was compared";
  EXPECT_FALSE(loose_limit({.name = "tiled"}, within(1e-3)));
}

}  // namespace
}  // namespace aisp::run
