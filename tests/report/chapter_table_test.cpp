// SPDX-License-Identifier: Apache-2.0
#include "report/markdown/chapter_table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/text.hpp"

namespace aisp::report {
namespace {

using evidence::Expectations;
using evidence::ExpectedPair;
using evidence::ExpectedVariant;
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
  pair.variants["half"] = {.speedup = 3,
                           .speedup_low = 2.9,
                           .speedup_high = 3.1,
                           .median_ms = 1.4,
                           .percent_of_floor = 92.8,
                           .speedups = {2.99, 3, 3, 3.01, 3.02},
                           .medians_ms = {1.4, 1.4, 1.4, 1.41, 1.39}};
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
  EXPECT_THAT(
      table, HasSubstr("| pair | GPU | baseline | lesson | its time | speedup of the recorded runs | best variant | of its lower "
                       "bound | of the library |\n"
                       "| --- | --- | ---: | --- | ---: | ---: | --- | ---: | --- |\n"
                       "| transpose | H200 | 4.20 ms | half | 1.40 ms | 3.00x [2.90, 3.10], 5 runs | tiled 7.72x | 93 % | "
                       "33 % of library, best 64 % of quick |\n\n"));
  EXPECT_THAT(
      table,
      HasSubstr("\n### Steps, controls and libraries\n\n<details>\n<summary>A table of steps, controls, libraries</summary>\n\n"
                "| pair | GPU | steps | controls | libraries |\n| --- | --- | --- | --- | --- |\n"
                "| transpose | H200 | half 3.00x, tiled 7.72x (2.57x), late 6.00x (2.00x over half) | "
                "serial 0.500x | library 9.00x, quick 12.0x |\n\n</details>\n\n"));
  EXPECT_THAT(table,
              ContainsRegex("\n- H200: NVIDIA H200, driver 580.159, CUDA 13.0, power limit 700 W; recorded\\s+2026-01-02\\s+"
                            "at\\s+012345678\\s+with\\s+changes\n"));
  EXPECT_THAT(table, Not(HasSubstr("tale")));
}

TEST(ChapterTable, FewRunsShowTheirRangeAndNoIntervalOfFurtherRuns) {
  ExpectedPair pair = transposed();
  pair.variants["half"].speedups = {2.8, 3, 3.3};
  EXPECT_THAT(table_of(pair), HasSubstr("| 1.40 ms | 3.00x (2.80 to 3.30, 3 runs) |"));
  pair.variants["half"].speedups = {3};
  EXPECT_THAT(table_of(pair), HasSubstr("| 1.40 ms | 3.00x (1 run) |"));
  pair.judged_by = "bytes_moved";
  EXPECT_THAT(table_of(pair), HasSubstr("| 1.40 ms | 3.00x of bytes_moved (1 run) |"));
}

TEST(ChapterTable, WhereRunsDifferByHalfTimesStandInPlaceOfARatio) {
  ExpectedPair pair = transposed();
  pair.baseline_medians_ms = {3.5, 5.25};
  ExpectedVariant& half = pair.variants["half"];
  half.medians_ms = {1.4, 1.4};
  half.speedups = {2.5, 3.74};
  EXPECT_THAT(table_of(pair), HasSubstr("| 3.00x (2.50 to 3.74, 2 runs) |"));
  half.speedups = {2.5, 3.75};
  EXPECT_THAT(table_of(pair), HasSubstr("| no ratio: 3.50 to 5.25 ms against 1.40 ms, 2 runs |"));
  EXPECT_THAT(table_of(pair), HasSubstr("| half 1.40 ms, tiled 7.72x (2.57x), late 6.00x (2.00x over half) |"));
  half.speedups = {3, 3, 3, 3, 3};
  half.speedup_low = 2;
  half.medians_ms = {0.9, 1.4, 1.4, 1.4, 1.45};
  EXPECT_THAT(table_of(pair), HasSubstr("| no ratio: 3.50 to 5.25 ms against 900 us to 1.45 ms, 5 runs |"));
  pair.judged_by = "bytes_moved";
  pair.baseline_metrics["bytes_moved"] = {8, "GB"};
  half.metrics["bytes_moved"] = {2, "GB"};
  EXPECT_THAT(table_of(pair), HasSubstr("| no ratio: 8 GB against 2 GB of bytes_moved, 5 runs |"));
}

// The steps of one run share its baseline: what varies with that does not blur the gain of one over the other.
TEST(ChapterTable, AGainIsShownWhereItIsSteadyWithinEachRun) {
  ExpectedPair pair = transposed();
  pair.variants["half"].speedups = {2, 4};
  pair.variants["tiled"].speedups = {5.2, 10.3};
  EXPECT_THAT(table_of(pair), HasSubstr("| half 1.40 ms, tiled 544 us (2.57x), "));
  pair.variants["tiled"].speedups = {10.3, 5.2};
  EXPECT_THAT(table_of(pair), HasSubstr("| half 1.40 ms, tiled 544 us, "));
}

TEST(ChapterTable, SharesOfTheBestVariantBesideThoseOfTheLesson) {
  ExpectedPair pair = transposed();
  pair.variants["tiled"].percent_of_floor = 98.4;
  pair.variants.erase("quick");
  EXPECT_THAT(table_of(pair), HasSubstr("| 93 %, best 98 % | 33 %, best 86 % of library |\n"));
  pair.variants["half"].percent_of_floor.reset();
  EXPECT_THAT(table_of(pair), HasSubstr("| best 98 % |"));
  pair.variants.erase("half");
  EXPECT_THAT(table_of(pair), HasSubstr("| 4.20 ms | - | - | - | tiled 7.72x | best 98 % | best 86 % of library |\n"));
  pair = transposed();
  pair.variants.erase("tiled");
  pair.variants.erase("late");
  EXPECT_THAT(table_of(pair), HasSubstr("| 3.00x [2.90, 3.10], 5 runs |  | 93 % | 33 % of library |\n"));
}

TEST(ChapterTable, ALibraryThatIsSlowerThanTheBaselineIsNoBar) {
  ExpectedPair pair = transposed();
  pair.variants["quick"].speedup = 0.9;
  EXPECT_THAT(table_of(pair), HasSubstr("| 93 % | 33 %, best 86 % of library |\n"));
  pair.variants["library"].speedup = 0.998;
  EXPECT_THAT(table_of(pair), HasSubstr("| tiled 7.72x | 93 % |  |\n"));
  EXPECT_THAT(table_of(pair), HasSubstr("| library 0.998x, quick 0.900x |\n"));
  pair.variants["library"].speedup = 0.9996;
  EXPECT_THAT(table_of(pair), HasSubstr("| 93 % | 300 %, best 772 % of library |\n"));
}

TEST(ChapterTable, SaysWhatElseJudgesAndWhatIsStale) {
  ExpectedPair pair = transposed();
  pair.judged_by = "bytes_moved";
  pair.source_digest = "def";
  EXPECT_THAT(table_of(pair), HasSubstr("3.00x [2.90, 3.10] of bytes_moved, 5 runs |"));
  EXPECT_THAT(table_of(pair), HasSubstr("| H200 (**stale**) |"));
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
  EXPECT_THAT(table, HasSubstr("| pair | GPU | steps | controls | libraries | metrics |"));
  EXPECT_THAT(table, HasSubstr("| library 9.00x, quick 12.0x | tiled: images 812 to 6.27M images/s, captured - to 0.970, "
                               "faults 7 to - of a\\|b |\n"));
  EXPECT_THAT(table, ContainsRegex("the\\s+one\\s+named\\.\\s+Metrics\\s+go"));
  pair.lesson = "tiled";
  EXPECT_THAT(table_of(pair), HasSubstr("| images 812 to "));
}

TEST(ChapterTable, OfManyMetricsThoseThatDifferMost) {
  ExpectedPair pair = transposed();
  pair.baseline_metrics = {{"a", {10, ""}}, {"b", {10, ""}}, {"c", {10, ""}}, {"d", {0, ""}}, {"e", {10, ""}}};
  pair.variants["tiled"].metrics = {{"a", {11, ""}}, {"b", {1, ""}},  {"c", {30, ""}},
                                    {"d", {5, ""}},  {"e", {10, ""}}, {"f", {9, ""}}};
  EXPECT_THAT(table_of(pair), HasSubstr("| tiled: d 0 to 5, b 10 to 1, c 10 to 30 and 2 more |\n"));
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
  EXPECT_THAT(table, HasSubstr("| pair | GPU | controls | libraries | metrics |\n"));
  EXPECT_THAT(table,
              HasSubstr("| counting | H200 | serial 0.500x | library 9.00x, quick 12.0x | tiled: images 5 to - images/s |\n"
                        "| silent | H200 | serial 0.500x | library 9.00x, quick 12.0x |  |\n\n"));
  EXPECT_THAT(table, HasSubstr("| unmeasured | not measured yet |  |  |  |  |  |  |  |\n"));
}

TEST(ChapterTable, WhatNoneOfThePairsHasIsLeftOut) {
  ExpectedPair pair = transposed();
  std::erase_if(pair.variants, [](const auto& variant) { return variant.first != "half"; });
  const std::string table =
      chapter_table("ch07", {{.chapter = "ch07", .name = "transpose", .lesson = "half", .source_digests = {"abc"}}},
                    {Expectations{.hardware = "h200", .chapter = "ch07", .pairs = {{"transpose", pair}}}});
  EXPECT_THAT(table, HasSubstr("| transpose | H200 | 4.20 ms | half | 1.40 ms | 3.00x [2.90, 3.10], 5 runs |  | 93 % |  |\n"));
  EXPECT_THAT(table, Not(HasSubstr("###")));
}

TEST(ChapterTable, TellsOfAHostWhatDecidesItsTimes) {
  ExpectedPair pair = transposed();
  pair.recorded = {.date_utc = "2026-01-02T03:04:05Z", .commit = "0123456789abcdef", .cpu = "Some CPU"};
  EXPECT_THAT(table_of(pair), ContainsRegex("Some CPU; recorded"));
  pair.recorded.cpus_usable = 16;
  pair.recorded.numa_nodes = 1;
  pair.recorded.hypervisor = "kvm";
  EXPECT_THAT(table_of(pair), ContainsRegex("Some CPU, 16 usable CPUs, 1 NUMA node, hypervisor\\s+kvm; recorded"));
}

TEST(ChapterTable, OtherChaptersDoNotCount) {
  const std::string table = chapter_table(
      "ch07", {{.chapter = "ch07", .name = "transpose", .teaches = "a sentence", .lesson = "tiled", .source_digests = {"abc"}}},
      {Expectations{.hardware = "h200", .chapter = "ch08", .pairs = {{"transpose", transposed()}}}});
  EXPECT_THAT(table, HasSubstr("| transpose | not measured yet |"));
}

TEST(ChapterTable, BothKindsOfHardwareHaveARowBelowOneName) {
  const std::string table = chapter_table(
      "ch07", {{.chapter = "ch07", .name = "transpose", .teaches = "a sentence", .lesson = "tiled", .source_digests = {"abc"}}},
      {Expectations{.hardware = "2x_h200", .chapter = "ch07", .pairs = {{"transpose", transposed()}}},
       Expectations{.hardware = "h200", .chapter = "ch07", .pairs = {{"transpose", transposed()}}}});
  EXPECT_THAT(table, HasSubstr("\n| transpose | 2x H200 | 4.20 ms |"));
  EXPECT_THAT(table, HasSubstr("\n|  | H200 | 4.20 ms |"));
}

TEST(ChapterTable, KindsOfOneNameKeepTheirKeys) {
  ExpectedPair small = transposed(), large = transposed();
  small.recorded.gpu = "NVIDIA A100 40GB PCIe";
  large.recorded.gpu = "NVIDIA A100 80GB PCIe";
  const std::string table =
      chapter_table("ch07", {{.chapter = "ch07", .name = "transpose", .lesson = "tiled", .source_digests = {"abc"}}},
                    {Expectations{.hardware = "a100_40gb_pcie", .chapter = "ch07", .pairs = {{"transpose", small}}},
                     Expectations{.hardware = "a100_80gb_pcie", .chapter = "ch07", .pairs = {{"transpose", large}}}});
  EXPECT_THAT(table, HasSubstr("| transpose | a100_40gb_pcie |"));
  EXPECT_THAT(table, HasSubstr("|  | a100_80gb_pcie |"));
}

TEST(ChapterTable, PairsOfOneCommitAndDateAreNamedTogether) {
  std::vector<KnownPair> known;
  Expectations file{.hardware = "h200", .chapter = "ch07"};
  for (const char* name : {"a", "b", "c", "d"}) {
    known.push_back({.chapter = "ch07", .name = name, .lesson = "half", .source_digests = {"abc"}});
    file.pairs[name] = transposed();
    file.pairs[name].recorded.gpu = "X";
    file.pairs[name].recorded.commit = *name == 'c' ? "fedcba9876543" : "0123456789abc";
  }
  file.pairs["b"].recorded.date_utc = "2026-01-01T03:04:05Z";
  EXPECT_THAT(chapter_table("ch07", known, {file}),
              ContainsRegex("; recorded\\s+2026-01-01\\s+at\\s+012345678\\s+\\(b\\),\\s+2026-01-02\\s+at\\s+fedcba987\\s+"
                            "\\(c\\),\\s+2026-01-02\\s+at\\s+012345678\\s+\\(the\\s+others\\)\n"));
}

TEST(ChapterTable, KeepsTheRestOfThePage) {
  EXPECT_EQ(with_table("a\n<!-- measured: begin -->\nx\ny\n<!-- measured: end -->\nb", "T\n", "README"),
            "a\n<!-- measured: begin -->\n\nT\n\n<!-- measured: end -->\nb");
}

}  // namespace
}  // namespace aisp::report
