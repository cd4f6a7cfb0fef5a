// SPDX-License-Identifier: Apache-2.0
#include "report/markdown/chapter_table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/text.hpp"

namespace aisp::report {
namespace {

using evidence::Expectations;
using evidence::ExpectedPair;
using evidence::VariantRole;
using testing::ContainsRegex;
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
  pair.variants["half"] = {.speedup = 3, .speedup_low = 2.9, .speedup_high = 3.1, .median_ms = 1.4, .percent_of_floor = 92.8};
  pair.variants["tiled"] = {.speedup = 7.72, .speedup_low = 7.69, .speedup_high = 7.74, .median_ms = 0.544};
  pair.variants["late"] = {.speedup = 6, .speedup_low = 5, .speedup_high = 7, .median_ms = 0.7};
  pair.variants["library"] = {.role = VariantRole::library, .speedup = 9, .speedup_low = 8, .speedup_high = 10, .median_ms = 0.5};
  pair.variants["quick"] = {.role = VariantRole::library, .speedup = 12, .speedup_low = 11, .speedup_high = 13, .median_ms = 0.3};
  pair.variants["serial"] = {
      .role = VariantRole::control, .speedup = 0.5, .speedup_low = 0.4, .speedup_high = 0.6, .median_ms = 8};
  return pair;
}

std::string table_of(const ExpectedPair& pair) {
  // "quick" rounds more than the lesson does.
  return chapter_table("ch07",
                       {{.chapter = "ch07",
                         .name = "transpose",
                         .teaches = "tiles make both sides coalesced",
                         .lesson = "half",
                         .steps = {{"half", "direct", {"library", "absent"}},
                                   {"wide", "half", {}},
                                   {"tiled", "half", {"library", "quick"}},
                                   {"late", "half", {}}},
                         .source_digests = {"fed", "abc"}}},
                       {Expectations{.hardware = "h200", .chapter = "ch07", .pairs = {{"transpose", pair}}}});
}

TEST(ChapterTable, ARowOfAGpuPair) {
  const std::string table = table_of(transposed());
  EXPECT_THAT(table,
              HasSubstr("| transpose | tiles make both sides coalesced | 4.20 ms | half 1.40 ms | 3.00x [2.90, 3.10] | 93 % | "
                        "33 % of library, tiled 64 % of quick | half 3.00x, tiled 7.72x (2.57x), late 6.00x (2.00x over half) | "
                        "serial 0.500x | "
                        "library 9.00x, quick 12.0x | h200 | 2026-01-02 at 012345678 with changes |\n"));
  EXPECT_THAT(table, HasSubstr("\nh200: NVIDIA H200, driver 580.159, CUDA 13.0, power limit 700 W\n"));
  EXPECT_THAT(table, Not(HasSubstr("tale")));
}

TEST(ChapterTable, SaysWhatElseJudgesAndWhatIsStale) {
  ExpectedPair pair = transposed();
  pair.judged_by = "bytes_moved";
  pair.source_digest = "def";
  EXPECT_THAT(table_of(pair), HasSubstr("3.00x [2.90, 3.10] of bytes_moved |"));
  EXPECT_THAT(table_of(pair), HasSubstr("(**stale**) |"));
}

TEST(ChapterTable, MetricsOfTheBaselineAndOfTheBestVariant) {
  ExpectedPair pair = transposed();
  EXPECT_THAT(table_of(pair), Not(HasSubstr("metrics")));
  pair.variants["half"].metrics = {{"images", {3, "images/s"}}};
  EXPECT_THAT(table_of(pair), Not(HasSubstr("metrics"))) << "half is the lesson, and tiled is faster";
  pair.baseline_metrics = {{"faults", {7, "of a|b"}}, {"images", {812.4, "images/s"}}, {"registers", {32, "registers"}}};
  pair.variants["tiled"].metrics = {
      {"captured", {0.97, ""}}, {"images", {6271000, "images/s"}}, {"registers", {32, "registers"}}};
  const std::string table = table_of(pair);
  EXPECT_THAT(table, HasSubstr("| libraries | metrics | hardware |"));
  EXPECT_THAT(table, HasSubstr("| library 9.00x, quick 12.0x | tiled: captured - to 0.970, faults 7 to - of a\\|b, "
                               "images 812 to 6.27M images/s | h200 |"));
  EXPECT_THAT(table, ContainsRegex("the one\\s+named;\\s+metrics: what else"));
  pair.lesson = "tiled";
  EXPECT_THAT(table_of(pair), HasSubstr("| captured - to 0.970, "));
}

TEST(ChapterTable, RunningTextIsWrapped) {
  ExpectedPair pair = transposed();
  pair.source_digest = "def";
  pair.recorded.gpu += " with a name that goes on and on, longer than that of any product that somebody has sold yet";
  const std::string table = table_of(pair);
  for (const std::string& line : base::split(table, '\n')) EXPECT_TRUE(line.size() <= 100 || line.starts_with("|")) << line;
  EXPECT_THAT(table,
              HasSubstr("\n\nStale: the code changed after the measurement; `aisp run --targets ch07 --update-expectations`\n"
                        "measures it again.\n"));
}

TEST(ChapterTable, OnlyOneOfTwoPairsHasMetrics) {
  ExpectedPair counting = transposed();
  counting.baseline_metrics = {{"images", {5, "images/s"}}};
  const std::string table = chapter_table(
      "ch07",
      {{.chapter = "ch07", .name = "counting", .teaches = "a", .lesson = "half", .source_digests = {"abc"}},
       {.chapter = "ch07", .name = "silent", .teaches = "b", .lesson = "half", .source_digests = {"abc"}},
       {.chapter = "ch07", .name = "unmeasured", .teaches = "c", .lesson = "half", .source_digests = {"abc"}}},
      {Expectations{.hardware = "h200", .chapter = "ch07", .pairs = {{"counting", counting}, {"silent", transposed()}}}});
  EXPECT_THAT(table, HasSubstr("| tiled: images 5 to - images/s | h200 |"));
  EXPECT_THAT(table, HasSubstr("| library 9.00x, quick 12.0x |  | h200 |"));
  EXPECT_THAT(table, HasSubstr("| unmeasured | c | not measured yet |  |  |  |  |  |  |  |  |  |  |\n"));
}

TEST(ChapterTable, OtherChaptersDoNotCount) {
  const std::string table = chapter_table(
      "ch07", {{.chapter = "ch07", .name = "transpose", .teaches = "a sentence", .lesson = "tiled", .source_digests = {"abc"}}},
      {Expectations{.hardware = "h200", .chapter = "ch08", .pairs = {{"transpose", transposed()}}}});
  EXPECT_THAT(table, HasSubstr("| transpose | a sentence | not measured yet |"));
}

TEST(ChapterTable, BothKindsOfHardwareHaveARow) {
  const std::string table = chapter_table(
      "ch07", {{.chapter = "ch07", .name = "transpose", .teaches = "a sentence", .lesson = "tiled", .source_digests = {"abc"}}},
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
