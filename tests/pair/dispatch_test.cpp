// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <aisp/check.hpp>
#include <aisp/dispatch.hpp>

#include <array>
#include <string>

namespace aisp {
namespace {

template <auto... values>
std::string refusal(std::uint64_t value) {
  int calls = 0;
  try {
    dispatch<values...>("width", value, [&]<int>() { ++calls; });
  } catch (const Unsupported& refused) {
    EXPECT_EQ(calls, 0);
    return refused.what();
  }
  return "";
}

TEST(Dispatch, CallsWithTheValueAtCompileTimeAndReturnsWhatThatDoes) {
  for (const std::uint64_t width : {3u, 5u, 11u}) {
    const std::size_t found = dispatch<3, 5, 11>(
        "width", width, []<int width>() { return std::array<char, static_cast<std::size_t>(width)>{}.size(); });
    EXPECT_EQ(found, width);
  }
  const bool is_zero = dispatch<0, 1>(
      "option", 0, []<auto value>() { return value == 0; });
  EXPECT_TRUE(is_zero);
}

TEST(Dispatch, CallsOnce) {
  int calls = 0;
  dispatch<8, 2, 4>("lanes", 2, [&]<unsigned lanes>() { calls += static_cast<int>(lanes); });
  EXPECT_EQ(calls, 2);
}

TEST(Dispatch, RefusesWithTheNameAndTheValues) {
  EXPECT_EQ((refusal<3, 5, 7, 9, 11>(4)), "width must be 3, 5, 7, 9 or 11, not 4; nothing else is compiled");
  EXPECT_EQ((refusal<8, 16>(0)), "width must be 8 or 16, not 0; nothing else is compiled");
  EXPECT_EQ((refusal<8>(1ull << 32 | 8)), "width must be 8, not 4294967304; nothing else is compiled");
  EXPECT_EQ((refusal<3, 5>(5)), "");
}

}  // namespace
}  // namespace aisp
