// SPDX-License-Identifier: Apache-2.0
#include "base/text.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace aisp::base {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Glob, MatchesAsShellsDo) {
  EXPECT_TRUE(glob_match("transpose", "transpose"));
  EXPECT_FALSE(glob_match("transpose", "transposed"));
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_TRUE(glob_match("tr*", "transpose"));
  EXPECT_TRUE(glob_match("*s*s*", "transpose"));
  EXPECT_FALSE(glob_match("*s*s*s*", "transpose"));
  EXPECT_TRUE(glob_match("ch0?:*", "ch07:transpose"));
  EXPECT_FALSE(glob_match("ch0?:*", "ch10:cluster"));
  EXPECT_FALSE(glob_match("?", ""));
  EXPECT_TRUE(glob_match("a*b*c", "aXbYbZc"));
}

TEST(Glob, KnowsSetsOfCharacters) {
  EXPECT_TRUE(glob_match("ch0[1-3]", "ch02"));
  EXPECT_FALSE(glob_match("ch0[1-3]", "ch04"));
  EXPECT_TRUE(glob_match("ch0[!1-3]", "ch04"));
  EXPECT_TRUE(glob_match("[]x]", "]"));
  EXPECT_TRUE(glob_match("[a-]", "-"));
  EXPECT_TRUE(glob_match("a[b", "a[b"));
  EXPECT_FALSE(glob_match("a[b", "ab"));
}

TEST(Glob, StaysQuickOnPatternsMadeToBacktrack) {
  EXPECT_FALSE(glob_match("*a*a*a*a*a*a*a*a*a*a*a*a*b", std::string(5000, 'a')));
}

TEST(Nearest, NamesWhatWasProbablyMeant) {
  const std::vector<std::string> names{"transpose", "threshold", "copy", "cluster"};
  EXPECT_THAT(nearest(names, "trnaspose", 1), ElementsAre("transpose"));
  EXPECT_THAT(nearest(names, "thresh"), ElementsAre("threshold"));
  EXPECT_THAT(nearest(names, "Cluster", 1), ElementsAre("cluster"));
  EXPECT_THAT(nearest(names, "qqqqqqqqqq"), IsEmpty());
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("rnu", "run"), 1u) << "neighbours that changed places";
  EXPECT_EQ(edit_distance("verfiy", "verify"), 1u);
  EXPECT_THAT(nearest({"run", "verify", "clean"}, "rnu"), ElementsAre("run"));
}

TEST(Numbers, KeepTheDigitsThatMatter) {
  EXPECT_EQ(significant(4.2512), "4.25");
  EXPECT_EQ(significant(717.4), "717");
  EXPECT_EQ(significant(0.012345), "0.0123");
  EXPECT_EQ(significant(9.996), "10.0");
  EXPECT_EQ(significant(999.7), "1000");
  EXPECT_EQ(significant(123456.0), "123456");
  EXPECT_EQ(significant(-0.5), "-0.500");
  EXPECT_EQ(significant(0), "0");
}

TEST(Numbers, CarryFittingUnits) {
  EXPECT_EQ(human_bytes(512), "512 B");
  EXPECT_EQ(human_bytes(1536.0 * 1024 * 1024), "1.5 GiB");
  EXPECT_EQ(human_bytes(1023.99 * 1024), "1 MiB");
  EXPECT_EQ(human_bytes(139.8 * 1024 * 1024 * 1024), "140 GiB");
  EXPECT_EQ(human_rate(4.25e12, "B"), "4.25 TB/s");
  EXPECT_EQ(human_rate(717e12, "FLOP"), "717 TFLOP/s");
  EXPECT_EQ(human_rate(999.9e9, "B"), "1.00 TB/s");
  EXPECT_EQ(display_ms(0.00358), "3.58 us");
  EXPECT_EQ(display_ms(0.0007), "700 ns");
  EXPECT_EQ(display_ms(12.4), "12.4 ms");
  EXPECT_EQ(display_ms(0.99996), "1.00 ms");
  EXPECT_EQ(display_ms(1234), "1.23 s");
}

TEST(Durations, ReadAsPeopleSayThem) {
  EXPECT_EQ(human_duration(0.85), "850 ms");
  EXPECT_EQ(human_duration(3.24), "3.2 s");
  EXPECT_EQ(human_duration(12.4), "12 s");
  EXPECT_EQ(human_duration(59.7), "1 min");
  EXPECT_EQ(human_duration(200), "3 min 20 s");
  EXPECT_EQ(human_duration(3599.9), "1 h");
  EXPECT_EQ(human_duration(4 * 3600 + 5 * 60 + 1), "4 h 5 min");
  EXPECT_EQ(human_duration(3 * 86400), "3 d");
}

TEST(Text, IsCutAndJoined) {
  EXPECT_EQ(join({"a", "b", "c"}, ", "), "a, b, c");
  EXPECT_EQ(join({}, ", "), "");
  EXPECT_EQ(join({"", ""}, "-"), "-");
  EXPECT_THAT(split("a,,b", ','), ElementsAre("a", "", "b"));
  EXPECT_THAT(split("", ','), ElementsAre(""));
  EXPECT_EQ(trim(" \t x y \n"), "x y");
  EXPECT_EQ(trim(" \n "), "");
  EXPECT_EQ(plural(1, "pair"), "1 pair");
  EXPECT_EQ(plural(0, "pair"), "0 pairs");
}

}  // namespace
}  // namespace aisp::base
