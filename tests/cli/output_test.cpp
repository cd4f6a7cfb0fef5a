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
  EXPECT_EQ(target_list({.targets = {"ch01, ch02", "ch07:a"}}), (std::vector<std::string>{"ch01", "ch02", "ch07:a"}));
  EXPECT_EQ(target_list({.targets = {"ch01"}, .words = {"ch07:a,b", "c"}}),
            (std::vector<std::string>{"ch01", "ch07:a", "b", "c"}));
  EXPECT_TRUE(target_list({}).empty());
  EXPECT_THROW(target_list({.targets = {","}}), base::Error);
  EXPECT_THROW(target_list({.words = {","}}), base::Error);
}

TEST(DoingText, SaysHowFarSamplingIs) {
  EXPECT_EQ(doing_text({.stage = evidence::Stage::verify}), "verify");
  run::Progress progress{.stage = evidence::Stage::measurement,
                         .rounds = {.round = 3, .of = 20, .wanted_percent = 1, .spent_s = 0.2, .budget_s = 3}};
  EXPECT_EQ(doing_text(progress), "round 3 of 20, 0.2 of 3 s");
  progress.rounds.interval_percent = 1.81;
  EXPECT_EQ(doing_text(progress), "interval 1.8 % (until 1 %), 0.2 of 3 s");
  progress.rounds.spent_s = 3.2;
  EXPECT_EQ(doing_text(progress), "interval 1.8 % (until 1 %), 3.0 of 3 s");
  progress.rounds.wanted_percent = 0;
  EXPECT_EQ(doing_text(progress), "round 3 of 20, 3.0 of 3 s") << "the interval ends nothing";
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
