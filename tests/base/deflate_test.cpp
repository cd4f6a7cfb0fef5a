// SPDX-License-Identifier: Apache-2.0
#include "base/deflate.hpp"

#include <gtest/gtest.h>

#include <random>
#include <utility>

#include "inflate.hpp"

namespace aisp::base {
namespace {

void expect_round_trip(const std::string& text) {
  const std::string bytes = deflated(text);
  std::string back;
  ASSERT_NO_THROW(back = tests::inflated(bytes)) << text.size() << " bytes";
  EXPECT_TRUE(back == text) << text.size() << " bytes";
}

TEST(Deflate, TheSmallestTexts) {
  for (const std::string text : {"", "a", "ab", "aaa", "aaaa", "abcabcabcabc"}) expect_round_trip(text);
  expect_round_trip(std::string(2, '\0'));
}

TEST(Deflate, RepetitionsOfEveryLengthAndFromFarAway) {
  expect_round_trip(std::string(100'000, 'x'));
  std::mt19937 random{1};
  std::string noise;
  for (int i = 0; i < 40'000; ++i) noise += static_cast<char>(random());
  std::string text = noise;
  for (std::size_t length = 1; length < 600; ++length) text += noise.substr(length * 13, length) + static_cast<char>(random());
  expect_round_trip(text);
  for (const std::size_t distance : {32767u, 32768u, 32769u}) {
    const std::string repeated = noise.substr(0, distance) + noise.substr(0, 300);
    expect_round_trip(repeated);
    const bool reaches = deflated(repeated).size() < distance + 250;
    EXPECT_EQ(reaches, distance <= 32768) << distance;
  }
}

TEST(Deflate, RandomTextsOfManyAlphabets) {
  std::mt19937 random{2};
  for (int letters = 1; letters <= 256; letters *= 2)
    for (int round = 0; round < 8; ++round) {
      std::string text;
      for (auto left = random() % 3000; left > 0; --left) text += static_cast<char>(static_cast<int>(random()) % letters);
      expect_round_trip(text);
    }
}

// Counts of Fibonacci make the deepest tree, deeper than a code may be.
TEST(Deflate, RareLettersGetNoCodeThatIsTooLong) {
  std::string text;
  for (int letter = 0, count = 1, next = 1; letter < 24; ++letter) {
    text += std::string(static_cast<std::size_t>(count), static_cast<char>('a' + letter));
    const int sum = count + next;
    count = next;
    next = sum;
  }
  std::mt19937 random{3};
  for (std::size_t i = text.size(); i > 1; --i) std::swap(text[i - 1], text[random() % i]);
  expect_round_trip(text);
}

TEST(Deflate, TextsGetSmallAndStayTheSame) {
  std::string text;
  for (int i = 0; i < 20'000; ++i) text += "M" + std::to_string(i * 37 % 1000) + " " + std::to_string(5 + i / 700) + "h0";
  EXPECT_LT(deflated(text).size(), text.size() / 4);
  EXPECT_EQ(deflated(text), deflated(text));
  EXPECT_EQ(base64(deflated("the same bytes everywhere")), "7f1BCQBACEVBVPnVduGBFy8qiu1NMlOkDOVz9LdI0cSOERw=");
}

TEST(Base64, EndsAsItMust) {
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foo"), "Zm9v");
  EXPECT_EQ(base64("\xff\xfe\xfd"), "//79");
  for (const std::string text : {"", "f", "fo", "foo", "foobar"}) EXPECT_EQ(tests::from_base64(base64(text)), text);
}

}  // namespace
}  // namespace aisp::base
