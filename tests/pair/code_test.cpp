// SPDX-License-Identifier: Apache-2.0
#include "pair/code.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "pair/registry.hpp"

namespace aisp::pair {
namespace {

using testing::HasSubstr;

constexpr std::array<CodeDigest, 4> several{
    {{80, false, "ampere"}, {90, false, "hopper"}, {90, true, "ptx"}, {120, false, "rtx"}}};

TEST(Code, TheDigestIsOfWhatRunsOnTheGpu) {
  const Code code{several, {}};
  EXPECT_EQ(digest_on(code, 90), "hopper");
  EXPECT_EQ(digest_on(code, 80), "ampere");
  EXPECT_EQ(digest_on(code, 89), "ampere") << "of the same generation, before PTX of another";
  EXPECT_EQ(digest_on(code, 100), "ptx");
  EXPECT_EQ(digest_on(code, 121), "rtx");
  EXPECT_EQ(digest_on(code, 0), "ampere") << "no GPU is known";
  EXPECT_EQ(digest_on({}, 90), "");
}

TEST(Code, OfAnyArchitecture) {
  const Code code{several, {}};
  EXPECT_TRUE(has_digest(code, "hopper"));
  EXPECT_TRUE(has_digest(code, "rtx"));
  EXPECT_FALSE(has_digest(code, "volta"));
}

TEST(Code, EveryPairHasADigestAndItsText) {
  for (const Entry& entry : registry()) {
    const Code code = code_of(entry);
    ASSERT_FALSE(code.digests.empty()) << entry.target();
    for (const CodeDigest& digest : code.digests) EXPECT_EQ(digest.digest.size(), 64u) << entry.target();
    ASSERT_FALSE(code.files.empty()) << entry.target();
    EXPECT_EQ(code.files.front().path, entry.source);
    EXPECT_THAT(code.files.front().content().text, HasSubstr("extern constinit const")) << entry.target();
    std::string functions;
    for (const SourceFile& file : code.files) functions += file.content().functions;
    EXPECT_THAT(functions, HasSubstr("function ")) << entry.target();
  }
  EXPECT_TRUE(code_of(Entry{"ch01", "of_no_table", "", nullptr}).digests.empty());
}

}  // namespace
}  // namespace aisp::pair
