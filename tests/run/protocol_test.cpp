// SPDX-License-Identifier: Apache-2.0
#include "run/wire/protocol.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace aisp::run {
namespace {

using testing::ElementsAre;

std::vector<std::string> split(LineSplitter& splitter, std::initializer_list<std::string_view> pieces) {
  std::vector<std::string> lines;
  for (const std::string_view piece : pieces) splitter.feed(piece, [&](std::string_view line) { lines.emplace_back(line); });
  return lines;
}

TEST(LineSplitter, JoinsPiecesAndKeepsTheUnfinished) {
  LineSplitter splitter;
  EXPECT_THAT(split(splitter, {"ab", "c\nd", "ef\n\ng"}), ElementsAre("abc", "def", ""));
  EXPECT_THAT(split(splitter, {"h\n"}), ElementsAre("gh"));
}

TEST(LineSplitter, DropsAnOverlongLineAndGoesOn) {
  LineSplitter splitter{8};
  EXPECT_THAT(split(splitter, {"short\n12345", "6789", "10\nnext\n"}), ElementsAre("short", "next"));
  EXPECT_EQ(splitter.overlong_lines(), 1u);
}

TEST(ParseMessage, KnowsEveryKind) {
  EXPECT_EQ(std::get<StageBegun>(*parse_message(R"({"stage":"setup","limit_s":30})")).limit_s, 30);
  EXPECT_EQ(std::get<StageBegun>(*parse_message(R"({"stage":"setup","limit_s":30})")).stage, evidence::Stage::setup);
  EXPECT_EQ(std::get<StageDone>(*parse_message(R"({"stage_done":"setup","elapsed_s":0.5})")).elapsed_s, 0.5);
  EXPECT_EQ(std::get<RoundProgress>(*parse_message(R"({"progress":{"round":2,"of":20}})")).of, 20);
  const auto progress = std::get<RoundProgress>(
      *parse_message(R"({"progress":{"round":2,"of":20,"interval_percent":1.8,"wanted_percent":1,"spent_s":2.1,"budget_s":3}})"));
  EXPECT_EQ(progress.interval_percent, 1.8);
  EXPECT_EQ(progress.wanted_percent, 1);
  EXPECT_EQ(progress.spent_s, 2.1);
  EXPECT_EQ(progress.budget_s, 3);
  const auto wanted = std::get<BaselineWanted>(*parse_message(R"({"baseline_wanted":{"runs":3,"limit_s":2.5,"seed":7}})"));
  EXPECT_EQ(wanted.runs, 3);
  EXPECT_EQ(wanted.limit_s, 2.5);
  EXPECT_EQ(wanted.seed, 7u);
  EXPECT_EQ(std::get<TurnWanted>(*parse_message(R"({"turn_wanted":"quiet"})")).turn, Turn::quiet);
  EXPECT_EQ(std::get<TurnWanted>(*parse_message(R"({"turn_wanted":"work"})")).turn, Turn::work);
  EXPECT_THAT(std::get<BaselineTimes>(*parse_message(R"({"baseline_ms":[1,2.5]})")).ms, ElementsAre(1, 2.5));
  EXPECT_FALSE(parse_message(""));
}

TEST(ParseMessage, LastWordsOfACrash) {
  const auto message = parse_message(R"({"crash":["/usr/bin/aisp+0x1c","/lib/libc.so.6+0x2f"]})");
  ASSERT_TRUE(std::holds_alternative<Crash>(*message));
  EXPECT_EQ(std::get<Crash>(*message).places.front(), "/usr/bin/aisp+0x1c");
}

TEST(ParseMessage, NothingIsFatal) {
  for (const char* line : {R"({"crash":5})",
                           R"({"crash":[5]})",
                           "x",
                           "{",
                           "[1]",
                           "3",
                           "null",
                           "{}",
                           R"({"stage":1})",
                           R"({"stage":"a"})",
                           R"({"stage":"lunch","limit_s":30})",
                           R"({"stage_done":"lunch","elapsed_s":1})",
                           R"({"result":{"target":5}})",
                           R"({"progress":[]})",
                           R"({"baseline_wanted":3})",
                           R"({"turn_wanted":"lunch"})",
                           R"({"turn_wanted":1})",
                           R"({"baseline_ms":["x"]})",
                           R"({"progress":{"round":1,"of":2,"spent_s":"x"}})",
                           "\xff\xfe"})
    EXPECT_TRUE(std::holds_alternative<Unreadable>(*parse_message(line))) << line;
}

TEST(ParseMessage, ExcerptsArePrintableAndShort) {
  const std::string excerpt = printable_excerpt("a\x01\xff" + std::string(200, 'b'));
  EXPECT_EQ(excerpt.substr(0, 4), "a??b");
  EXPECT_LE(excerpt.size(), 83u);
}

}  // namespace
}  // namespace aisp::run
