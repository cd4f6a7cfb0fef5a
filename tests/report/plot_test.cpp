// SPDX-License-Identifier: Apache-2.0
#include "report/pictures/plot.hpp"

#include <gtest/gtest.h>

namespace aisp::report {
namespace {

const Plot plot{.area = {10, 20, 100, 50}, .x = {false, 0, 10, 10, 110}, .y = {true, 1, 100, 70, 20}};

TEST(Plot, LinesOfTheGridLieAtTheirValuesWithTheirNamesBeside) {
  EXPECT_EQ(plot.columns({{5, "five"}}),
            "<line class=\"grid\" x1=\"60.0\" y1=\"20.0\" x2=\"60.0\" y2=\"70.0\"/>\n"
            "<text class=\"tick\" x=\"60.0\" y=\"86.0\" text-anchor=\"middle\">five</text>\n");
  EXPECT_EQ(plot.rows({{10, "ten"}}),
            "<line class=\"grid\" x1=\"10.0\" y1=\"45.0\" x2=\"110.0\" y2=\"45.0\"/>\n"
            "<text class=\"tick\" x=\"4.0\" y=\"49.0\" text-anchor=\"end\">ten</text>\n");
}

TEST(Plot, TicksAreRoundValuesInsideOfTheScale) {
  std::string names;
  const auto name = [&](double value) { return names += std::to_string(static_cast<int>(value)) + " ", std::string{}; };
  EXPECT_LE(plot.x.ticks(6, name).size(), 7u);
  EXPECT_EQ(names, "0 2 4 6 8 10 ");
  names.clear();
  plot.y.ticks(9, name);
  EXPECT_EQ(names, "1 2 5 10 20 50 100 ");
  names.clear();
  plot.y.ticks(3, name);
  EXPECT_EQ(names, "1 10 100 ");
}

}  // namespace
}  // namespace aisp::report
