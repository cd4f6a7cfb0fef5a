// SPDX-License-Identifier: Apache-2.0
#include "report/chapter_table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace aisp::report {
namespace {

using evidence::Expectations;
using evidence::ExpectedPair;
using evidence::VariantRole;
using testing::HasSubstr;
using testing::Not;

ExpectedPair transposed() {
  ExpectedPair pair{.source_digest = "abc", .baseline = "direct", .baseline_median_ms = 4.2};
  pair.recorded = {.date_utc = "2026-01-02T03:04:05Z",
                   .commit = "0123456789abcdef+changes",
                   .gpu = "NVIDIA H200",
                   .driver = "580.159",
                   .cuda = "13.0",
                   .power_limit_w = 700};
  pair.variants["half"] = {.speedup = 3, .speedup_low = 2.9, .speedup_high = 3.1, .median_ms = 1.4};
  pair.variants["tiled"] = {
      .speedup = 7.72, .speedup_low = 7.69, .speedup_high = 7.74, .median_ms = 0.544, .percent_of_floor = 92.8};
  pair.variants["library"] = {.role = VariantRole::peer, .speedup = 9, .speedup_low = 8, .speedup_high = 10, .median_ms = 0.5};
  return pair;
}

std::string table_of(const ExpectedPair& pair) {
  return chapter_table("ch07", {{"ch07", "transpose", "tiles make both sides coalesced", {"fed", "abc"}}},
                       {Expectations{.hardware = "h200", .chapter = "ch07", .pairs = {{"transpose", pair}}}});
}

TEST(ChapterTable, ARowOfAGpuPair) {
  const std::string table = table_of(transposed());
  EXPECT_THAT(table,
              HasSubstr("| transpose | tiles make both sides coalesced | 4.20 ms | tiled 544 us | 7.72x [7.69, 7.74] | 93 % | "
                        "half 3.00x, library (peer) 9.00x | h200 | 2026-01-02 at 012345678 with changes |\n"));
  EXPECT_THAT(table, HasSubstr("\nh200: NVIDIA H200, driver 580.159, CUDA 13.0, power limit 700 W\n"));
  EXPECT_THAT(table, Not(HasSubstr("tale")));
}

TEST(ChapterTable, SaysWhatElseJudgesAndWhatIsStale) {
  ExpectedPair pair = transposed();
  pair.judged_by = "bytes_moved";
  pair.source_digest = "def";
  EXPECT_THAT(table_of(pair), HasSubstr("7.72x [7.69, 7.74] of bytes_moved |"));
  EXPECT_THAT(table_of(pair), HasSubstr("(**stale**) |"));
}

TEST(ChapterTable, OtherChaptersDoNotCount) {
  const std::string table =
      chapter_table("ch07", {{"ch07", "transpose", "lesson", {"abc"}}},
                    {Expectations{.hardware = "h200", .chapter = "ch08", .pairs = {{"transpose", transposed()}}}});
  EXPECT_THAT(table, HasSubstr("| transpose | lesson | not measured yet |"));
}

TEST(ChapterTable, BothKindsOfHardwareHaveARow) {
  const std::string table =
      chapter_table("ch07", {{"ch07", "transpose", "lesson", {"abc"}}},
                    {Expectations{.hardware = "2x_h200", .chapter = "ch07", .pairs = {{"transpose", transposed()}}},
                     Expectations{.hardware = "h200", .chapter = "ch07", .pairs = {{"transpose", transposed()}}}});
  EXPECT_THAT(table, HasSubstr("| 2x_h200 |"));
  EXPECT_THAT(table, HasSubstr("| h200 |"));
}

TEST(ChapterTable, KeepsTheRestOfThePage) {
  EXPECT_EQ(with_table("a\n<!-- measured: begin -->\nx\ny\n<!-- measured: end -->\nb", "T\n", "README"),
            "a\n<!-- measured: begin -->\n\nT\n\n<!-- measured: end -->\nb");
}

}  // namespace
}  // namespace aisp::report
