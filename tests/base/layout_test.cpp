// SPDX-License-Identifier: Apache-2.0
#include "base/layout.hpp"

#include <gtest/gtest.h>

#include "base/system/terminal.hpp"
#include "base/text.hpp"

namespace aisp::base {
namespace {

using Lines = std::vector<std::string>;

std::size_t widest(const std::string& text) {
  std::size_t width = 0;
  for (const std::string& line : split(text, '\n')) width = std::max(width, display_width(line));
  return width;
}

TEST(DisplayWidth, CountsCharactersWithoutColours) {
  EXPECT_EQ(display_width("µs"), 2U);
  EXPECT_EQ(display_width(Painter{true}(Style::red, "bad")), 3U);
  EXPECT_EQ(display_width("\x1b[2J"), 4U) << "what a Painter does not write is no colour";
}

TEST(FirstColumns, CutsBetweenCharacters) {
  EXPECT_EQ(first_columns("12 µs", 4), "12 µ");
  EXPECT_EQ(first_columns("12 µs", 3), "12 ");
  EXPECT_EQ(first_columns("12 µs", 9), "12 µs");
}

TEST(Broken, BreaksAtBlanksAndIndentsWhatFollows) {
  EXPECT_EQ(broken("short", 20), Lines{"short"});
  EXPECT_EQ(broken("no pair is broken inside of a word here", 20), (Lines{"no pair is broken", "inside of a word", "here"}));
  EXPECT_EQ(broken("- one two three four five six seven eight", 30, 2),
            (Lines{"- one two three four five six", "  seven eight"}));
}

TEST(Broken, KeepsNumbersWithTheirUnitsAndIntervalsWhole) {
  EXPECT_EQ(broken("the median is 201 us", 17), (Lines{"the median is", "201 us"}));
  EXPECT_EQ(broken("faster 11.9x [11.9, 12.0] here", 22), (Lines{"faster 11.9x", "[11.9, 12.0] here"}));
  EXPECT_EQ(broken("fits " + Painter{true}(Style::red, "12") + " ms", 9), (Lines{"fits", "\x1b[31m12\x1b[0m ms"}));
}

TEST(Broken, KeepsWhatStandsInBackquotesWhole) {
  EXPECT_EQ(broken("then `aisp run` measures it", 12), (Lines{"then", "`aisp run`", "measures it"}));
  EXPECT_EQ(broken("one ` alone goes on and on", 12), (Lines{"one ` alone", "goes on and", "on"}));
}

TEST(Broken, LeavesALongWordAndOpenBracketsAlone) {
  EXPECT_EQ(broken("see /a/path/that/is/long/indeed now", 20), (Lines{"see", "/a/path/that/is/long/indeed", "now"}));
  EXPECT_EQ(broken("ch[0 was not closed and goes on", 20), (Lines{"ch[0 was not closed", "and goes on"}));
}

TEST(Broken, LeavesRoomOnNarrowScreens) {
  for (const std::string& line : broken("a few words that need more than one line", 20, 18)) EXPECT_LE(line.size(), 20U) << line;
}

TEST(ForScreen, LeavesFilesAndPipesAlone) {
  const std::string text = std::string(300, 'x') + " 12 us   and so on\n";
  EXPECT_EQ(for_screen(text, {}), text);
}

TEST(ForScreen, DropsPaddingBeforeItBreaks) {
  EXPECT_EQ(for_screen("ch01:coalescing       vectorized      11.9x [11.9, 12.0]\nab\n", {.width = 50}),
            "ch01:coalescing  vectorized  11.9x [11.9, 12.0]\nab\n");
  EXPECT_EQ(for_screen("  ch01:coalescing  vectorized  11.9x [11.9, 12.0]", {.width = 36}),
            "  ch01:coalescing  vectorized  11.9x\n      [11.9, 12.0]");
}

TEST(ForScreen, WritesMicroOnlyBehindNumbersAndWhereItCanBeShown) {
  EXPECT_EQ(for_screen("201 us, 3 uJ, 4 usable, tell us, 5 us", {.utf8 = true}), "201 µs, 3 µJ, 4 usable, tell us, 5 µs");
  EXPECT_EQ(for_screen("201 us", {.width = 40}), "201 us");
}

TEST(LaidOut, BreaksTheLastColumnWhereThereIsRoom) {
  const TableRows rows{{"pair", "what it teaches"},
                       {"ch01:coalescing", "neighbouring threads read neighbouring words of memory"}};
  EXPECT_EQ(laid_out(rows, 50),
            "pair             what it teaches\n"
            "ch01:coalescing  neighbouring threads read\n"
            "                 neighbouring words of memory\n");
  EXPECT_EQ(laid_out(rows, Screen::endless),
            "pair             what it teaches\n"
            "ch01:coalescing  neighbouring threads read neighbouring words of memory\n");
}

TEST(LaidOut, GivesARowSeveralLinesWhereItHasManyColumns) {
  const TableRows rows{{"pair", "variant", "measured", "expected"},
                       {"ch01:coalescing", "vectorized", "11.9x [11.9, 12.0]", "12.0x [11.9, 12.1]"}};
  EXPECT_EQ(laid_out(rows, 60),
            "pair             variant     measured\n"
            "    expected\n"
            "ch01:coalescing  vectorized  11.9x [11.9, 12.0]\n"
            "    12.0x [11.9, 12.1]\n");
}

TEST(LaidOut, NeverPassesTheEdge) {
  const TableRows rows{
      {"a", "b", "c", "d", "e"},
      {"a middling cell", "another of that kind", "third [1.25, 1.75] of them", "fourth", "the last of these cells"},
      {"x", "", "", "", ""}};
  for (std::size_t width = 24; width < 120; ++width) EXPECT_LE(widest(laid_out(rows, width)), width) << width;
}

}  // namespace
}  // namespace aisp::base
