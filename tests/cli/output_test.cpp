// SPDX-License-Identifier: Apache-2.0
#include "cli/output.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "cli/flags.hpp"
#include "cli/progress.hpp"
#include "cli/suite_flags.hpp"

namespace aisp::cli {
namespace {

TEST(Columns, AreAsWideAsTheirLongestCellAndCountCharacters) {
  EXPECT_EQ(columns({{"a", "b"}, {"long", "c"}}), "a     b\nlong  c\n");
  EXPECT_EQ(columns({{"µs", "x"}, {"abc", "y"}}), "µs   x\nabc  y\n");
  EXPECT_EQ(columns({}), "");
}

TEST(ColorFlag, RejectsWhatItDoesNotKnow) {
  EXPECT_EQ(color_flag("never"), base::Color::never);
  EXPECT_THROW(color_flag("pink"), base::Error);
}

TEST(TargetList, SplitsAtCommasAndRefusesNothing) {
  EXPECT_EQ(target_list({"ch01, ch02", "ch07:a"}), (std::vector<std::string>{"ch01", "ch02", "ch07:a"}));
  EXPECT_TRUE(target_list({}).empty());
  EXPECT_THROW(target_list({","}), base::Error);
}

TEST(TimeLeft, FollowsFromWhatWasMeasured) {
  EXPECT_EQ(estimate_left(10, 0, 5), "");
  EXPECT_EQ(estimate_left(10, 5, 0), "");
  EXPECT_EQ(estimate_left(10, 5, 6), "12 s left");
}

}  // namespace
}  // namespace aisp::cli
