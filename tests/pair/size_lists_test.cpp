// SPDX-License-Identifier: Apache-2.0
#include "pair/sizes.hpp"

#include <gmock/gmock.h>

#include <set>
#include <stdexcept>

namespace aisp::pair {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string refusal(const char* text) {
  try {
    return "taken as " + size_lists_text(parse_size_lists(text));
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
}

TEST(SizeLists, AreValuesListsAndRanges) {
  EXPECT_EQ(parse_size_lists("m=64"), (SizeLists{{"m", {64}}}));
  EXPECT_EQ(parse_size_lists("k=64,128,256,m=4096"), (SizeLists{{"k", {64, 128, 256}}, {"m", {4096}}}));
  EXPECT_EQ(parse_size_lists("m=1024:16384:*2"), (SizeLists{{"m", {1024, 2048, 4096, 8192, 16384}}}));
  EXPECT_EQ(parse_size_lists("pitch=32:48:+4"), (SizeLists{{"pitch", {32, 36, 40, 44, 48}}}));
  // The end is in it only where a step meets it.
  EXPECT_EQ(parse_size_lists("m=1:10:*3,n=0:10:+4"), (SizeLists{{"m", {1, 3, 9}}, {"n", {0, 4, 8}}}));
  EXPECT_EQ(parse_size_lists("m=7:7:*2"), (SizeLists{{"m", {7}}}));
  EXPECT_EQ(parse_size_lists("m=96,128:512:*2"), (SizeLists{{"m", {96, 128, 256, 512}}}));
}

TEST(SizeLists, WhatIsWrongIsSaid) {
  for (const char* bad :
       {"",        "m",       "m=",       "=5",         "64",       "m=x",     "m=-1",    "m=1,",        "m=1,,2", "m=1:2",
        "m=1:2:3", "m=1:2:*", "m=1:2:/2", "m=1:2:*2:3", "m=1:x:*2", "m=:2:*2", "m=1,m=2", "m=1,n=2,m=3", "m=1e3",  "m=1: 2:*2"})
    EXPECT_THAT(refusal(bad), HasSubstr("must be NAME=N, a list NAME=N,N,... or a range")) << bad;
  EXPECT_THAT(refusal("m=2048:1024:*2"), HasSubstr("empty range: 2048:1024:*2 begins above its end"));
  EXPECT_THAT(refusal("m=1:8:*1"), HasSubstr("without an end"));
  EXPECT_THAT(refusal("m=1:8:*0"), HasSubstr("without an end"));
  EXPECT_THAT(refusal("m=1:8:+0"), HasSubstr("without an end"));
  EXPECT_THAT(refusal("m=0:8:*2"), HasSubstr("multiplies 0"));
  EXPECT_THAT(refusal("m=1,2,1"), HasSubstr("has 1 twice among the values of m"));
  EXPECT_THAT(refusal("m=1:4:*2,2"), HasSubstr("has 2 twice among the values of m"));
  EXPECT_THAT(refusal("m=99999999999999999999"), HasSubstr("below 2^64"));
  EXPECT_THAT(refusal("m=1:257:+1"), HasSubstr("more than 256 values of m"));
  EXPECT_EQ(parse_size_lists("m=1:256:+1").at("m").size(), 256u);
}

TEST(SizeLists, RangesEndBelowTheGreatestNumber) {
  constexpr std::uint64_t top = ~std::uint64_t{0};
  EXPECT_THAT(parse_size_lists("m=9223372036854775808:18446744073709551615:*2").at("m"), ElementsAre(std::uint64_t{1} << 63));
  EXPECT_THAT(parse_size_lists("m=18446744073709551614:18446744073709551615:+1").at("m"), ElementsAre(top - 1, top));
}

TEST(SizeLists, MakeAGridOfNamedPoints) {
  const SizeLists lists = parse_size_lists("m=1,2,k=64,n=5,6,7");
  EXPECT_EQ(grid_size(lists), 6u);
  const std::vector<SizeMap> grid = grid_of(lists);
  ASSERT_EQ(grid.size(), 6u);
  EXPECT_EQ(grid.front(), (SizeMap{{"k", 64}, {"m", 1}, {"n", 5}}));
  EXPECT_EQ(grid[1], (SizeMap{{"k", 64}, {"m", 1}, {"n", 6}}));
  std::set<std::string> names;
  for (const SizeMap& point : grid) names.insert(point_name(lists, point));
  EXPECT_EQ(names.size(), 6u);
  EXPECT_EQ(point_name(lists, grid.back()), "m_2_n_7");
  EXPECT_EQ(point_name(parse_size_lists("m=1"), {{"m", 1}}), "");
  EXPECT_EQ(grid_of({}), (std::vector<SizeMap>{{}}));
}

TEST(SizeLists, ReadBackWhatTheyWrite) {
  const SizeLists lists = parse_size_lists("pitch=32:48:+4,m=8");
  EXPECT_EQ(size_lists_text(lists), "m=8,pitch=32,36,40,44,48");
  EXPECT_EQ(parse_size_lists(size_lists_text(lists)), lists);
}

TEST(SizeLists, AGridThatIsTooLargeToCountIsLargeStill) {
  SizeLists lists;
  for (char name = 'a'; name <= 'i'; ++name) lists[std::string{name}] = parse_size_lists("x=1:256:+1").at("x");
  EXPECT_EQ(grid_size(lists), ~std::size_t{0});
}

}  // namespace
}  // namespace aisp::pair
