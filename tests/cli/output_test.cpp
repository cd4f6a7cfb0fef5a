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

TEST(Columns, KeepEveryCellInItsLine) {
  EXPECT_EQ(columns({{"x\x1b]0;title\x07", "a\n::error::pwned"},
                     {"\xC2\x9B"
                      "2J",
                      "b\r"}}),
            "x ]0;title   a ::error::pwned\n 2J          b \n");
  EXPECT_EQ(columns({{base::Painter{true}(base::Style::red, "bad\n"), "x"}}), "\x1b[31mbad \x1b[0m  x\n");
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
  EXPECT_EQ(estimate_left(10, 0, 5, 0), "");
  EXPECT_EQ(estimate_left(10, 5, 0, 0), "");
  EXPECT_EQ(estimate_left(100, 5, 6, 0), "2 min left");
}

TEST(TimeLeft, DoesNotGrowWhileAPairRuns) {
  EXPECT_EQ(estimate_left(100, 5, 6, 5), "1 min 55 s left");
  EXPECT_EQ(estimate_left(100, 5, 6, 500), "1 min 40 s left");
  EXPECT_EQ(estimate_left(100, 5, 1, 500), "");
}

}  // namespace
}  // namespace aisp::cli
