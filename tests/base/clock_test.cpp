// SPDX-License-Identifier: Apache-2.0
#include "base/system/clock.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace aisp::base {
namespace {

TEST(Clock, WritesUtc) {
  EXPECT_EQ(utc_text(1795275012), "2026-11-21T15:30:12Z");
  EXPECT_EQ(folder_timestamp(1795275012), "20261121_153012");
  EXPECT_EQ(utc_text(0), "1970-01-01T00:00:00Z");
  EXPECT_THAT(utc_now(), testing::MatchesRegex("20[0-9][0-9]-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9]Z"));
}

TEST(Clock, SleepsAtLeastAsLongAsAsked) {
  const double before = monotonic_s();
  sleep_s(0.02);
  EXPECT_GE(monotonic_s() - before, 0.02);
  const double again = monotonic_s();
  sleep_s(-1);
  sleep_s(0);
  EXPECT_LT(monotonic_s() - again, 1.0);
}

}  // namespace
}  // namespace aisp::base
