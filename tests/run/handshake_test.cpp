// SPDX-License-Identifier: Apache-2.0
#include "run/wire/handshake.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "pair/registry.hpp"
#include "places.hpp"

namespace aisp::run {
namespace {

using testing::HasSubstr;

std::string refusal(const std::string& answer) {
  try {
    parse_handshake(answer, "/old/aisp");
  } catch (const base::Error& error) {
    return error.what();
  }
  return "it was accepted";
}

TEST(Handshake, WithAnExecutableOfTheSameProtocol) {
  const Counterpart other = shake_hands(fixtures_path());
  EXPECT_EQ(other.executable, fixtures_path());
  EXPECT_FALSE(other.version.empty());
  std::vector<std::string> own;
  for (const pair::Entry& entry : pair::registry()) own.push_back(entry.target());
  EXPECT_EQ(other.targets, own) << "both are built from the same pairs";
}

TEST(Handshake, AnotherProtocolOrSchemaIsRefused) {
  EXPECT_THAT(refusal(R"({"protocol":1,"schema_version":1,"version":"1","commit":"","targets":[]})"), HasSubstr("accepted"));
  EXPECT_THAT(refusal(R"({"protocol":99,"schema_version":1,"version":"1","commit":"","targets":[]})"),
              HasSubstr("--against /old/aisp: it speaks version 99 of the protocol between aisp and its children, this aisp 1"));
  EXPECT_THAT(refusal(R"({"protocol":1,"schema_version":7,"version":"1","commit":"","targets":[]})"),
              HasSubstr("its results have schema_version 7, those of this aisp 1"));
}

TEST(Handshake, WhatIsNoAispIsRefused) {
  for (const char* answer :
       {"", "{}", "[1]", "hello", R"({"protocol":1,"schema_version":1,"version":1,"commit":"","targets":[]})"})
    EXPECT_THAT(refusal(answer), HasSubstr("its answer is not that of an aisp")) << answer;
  EXPECT_THROW(shake_hands("/nowhere/aisp"), base::Error);
  EXPECT_THROW(shake_hands("/bin/false"), base::Error);
}

}  // namespace
}  // namespace aisp::run
