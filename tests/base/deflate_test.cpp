// SPDX-License-Identifier: Apache-2.0
#include "base/deflate.hpp"

#include <gtest/gtest.h>

#include <random>
#include <stdexcept>
#include <string>

#include "base64.hpp"

namespace aisp::base {
namespace {

TEST(Deflate, TextsOfAnyLengthComeBack) {
  for (const std::string text : {"", "a", "ab", "aaa", "abcabcabcabc"}) EXPECT_EQ(inflated(deflated(text)), text);
  EXPECT_EQ(inflated(deflated(std::string(2, '\0'))), std::string(2, '\0'));
  std::mt19937 random{1};
  std::string noise;
  for (int i = 0; i < 300'000; ++i) noise += static_cast<char>(random());
  EXPECT_TRUE(inflated(deflated(noise)) == noise);
  const std::string run(10'000'000, 'x');
  EXPECT_TRUE(inflated(deflated(run)) == run);
}

TEST(Deflate, TextsGetSmallAndStayTheSame) {
  std::string text;
  for (int i = 0; i < 20'000; ++i) text += "M" + std::to_string(i * 37 % 1000) + " " + std::to_string(5 + i / 700) + "h0";
  EXPECT_LT(deflated(text).size(), text.size() / 3);
  EXPECT_EQ(deflated(text), deflated(text));
}

TEST(Deflate, DamagedBytesAreRefused) {
  const std::string bytes = deflated("one sentence that is long enough to be packed, one sentence that is long enough");
  EXPECT_THROW(inflated(bytes.substr(0, bytes.size() - 3)), std::runtime_error);
  EXPECT_THROW(inflated(bytes + "more"), std::runtime_error);
  EXPECT_THROW(inflated(""), std::runtime_error);
  EXPECT_THROW(inflated("\xff\xff\xff"), std::runtime_error);
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
