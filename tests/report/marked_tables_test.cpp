// SPDX-License-Identifier: Apache-2.0
#include "report/markdown/marked_tables.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/system/files.hpp"
#include "base/text.hpp"
#include "evidence/recorded/counted.hpp"
#include "report/sample_suite.hpp"

namespace aisp::report {
namespace {

using evidence::Counted;
using evidence::VariantRole;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const std::vector<KnownPair> chapter{{.chapter = "ch07", .name = "transpose", .lesson = "tiled", .source_digests = {"abc"}},
                                     {.chapter = "ch07", .name = "scan", .lesson = "single_pass", .source_digests = {"fed"}}};

Counted counted_transpose() {
  Counted counted{.target = "ch07:transpose", .lesson = "tiled", .hardware = "h200", .source_digest = "abc"};
  counted.recorded = {.date_utc = "2026-01-02T03:04:05Z", .commit = "0123456789abcdef"};
  const auto add = [&](const char* name, VariantRole role, double sectors) {
    counted.variants.push_back({name, role, {.source = "CUPTI", .passes = 22, .sectors_per_store = sectors}});
  };
  add("direct", VariantRole::baseline, 32);
  add("tiled", VariantRole::optimized, 4);
  add("wide", VariantRole::optimized, 16);
  return counted;
}

std::string page_of(const std::string& words, const std::vector<Counted>& all) {
  return with_counted_tables("a\n<!-- counted: " + words + " -->\nold\n<!-- counted: end -->\nz\n", "ch07", chapter, all,
                             "README");
}

TEST(CountedTable, RowsOfBaselineAndLesson) {
  EXPECT_EQ(page_of("h200 transpose", {counted_transpose()}),
            "a\n<!-- counted: h200 transpose -->\n\n"
            "| pair: variant | sectors/store |\n| --- | --- |\n| transpose: direct | 32.0 |\n| transpose: tiled | 4.00 |\n\n"
            "Counted on h200 on 2026-01-02 at 012345678. Of each pair the baseline comes first.\n\n"
            "<!-- counted: end -->\nz\n");
}

TEST(CountedTable, FurtherVariantsAreNamed) {
  EXPECT_THAT(page_of("h200 transpose/wide", {counted_transpose()}), HasSubstr("| transpose: wide | 16.0 |"));
}

TEST(CountedTable, WritesThePageAgainUnchanged) {
  const std::string page = page_of("h200 transpose", {counted_transpose()});
  EXPECT_EQ(with_counted_tables(page, "ch07", chapter, {counted_transpose()}, "README"), page);
}

TEST(CountedTable, TheMarkMayTakeSeveralLines) {
  const std::string mark = "<!-- counted:\nh200 transpose\n  scan -->", page = mark + "\n<!-- counted: end -->";
  const std::string written = with_counted_tables(page, "ch07", chapter, {counted_transpose()}, "README");
  EXPECT_THAT(written, StartsWith(mark + "\n\n| pair: variant |"));
  EXPECT_THAT(written, HasSubstr("Not counted on h200 yet: scan.\n\n<!-- counted: end -->"));
  EXPECT_EQ(with_counted_tables(written, "ch07", chapter, {counted_transpose()}, "README"), written);
  EXPECT_THROW(with_counted_tables("<!-- counted: h200\ntranspose\n<!-- counted: end -->", "ch07", chapter, {}, "README"),
               base::Error)
      << "its own end is missing";
}

TEST(CountedTable, RunningTextIsWrapped) {
  std::vector<KnownPair> many;
  std::string words = "h200";
  for (int i = 10; i < 20; ++i) {
    many.push_back({.chapter = "ch07", .name = "a_pair_of_number_" + std::to_string(i), .lesson = "x"});
    words += " " + many.back().name;
  }
  const std::string written = with_counted_tables("<!-- counted: " + words + " -->\n<!-- counted: end -->", "ch07", many, {}, "");
  const std::vector<std::string> lines = base::split(written, '\n');
  ASSERT_GT(lines.size(), 6u);
  for (const std::string& line : std::vector(lines.begin() + 1, lines.end())) EXPECT_LE(line.size(), 100u);
  EXPECT_THAT(lines[2], StartsWith("Not counted on h200 yet: a_pair_of_number_10, a_pair"));
}

TEST(CountedTable, SaysWhatIsStaleAndWhatIsMissing) {
  Counted counted = counted_transpose();
  counted.source_digest = "other";
  const std::string page = page_of("h200 transpose scan", {counted});
  EXPECT_THAT(page, HasSubstr("Stale, since the code changed after the counting: transpose.\n"));
  EXPECT_THAT(page, HasSubstr("Not counted on h200 yet: scan.\n"));
  EXPECT_THAT(page_of("h100 transpose", {counted_transpose()}), Not(HasSubstr("|")));
}

TEST(CountedTable, RefusesWhatItCannotPlace) {
  EXPECT_THROW(page_of("h200 transposed", {}), base::Error);
  EXPECT_THROW(page_of("h200", {}), base::Error);
  EXPECT_THROW(with_counted_tables("<!-- counted: h200 scan -->\n", "ch07", chapter, {}, "README"), base::Error);
  EXPECT_THROW(with_counted_tables("<!-- counted: end -->\n", "ch07", chapter, {}, "README"), base::Error);
}

TEST(SweptTable, ARowForEachPoint) {
  evidence::Sweep sweep{.target = "ch07:transpose", .lesson = "tiled", .hardware = "h200", .source_digest = "abc"};
  sweep.recorded = {.date_utc = "2026-01-02T03:04:05Z", .commit = "0123456789abcdef"};
  for (const std::uint64_t rows : {64, 128})
    sweep.points.push_back(
        {.name = "rows_" + std::to_string(rows),
         .sizes = {{"rows", rows}},
         .variants = {{.name = "direct", .role = VariantRole::baseline, .median_ms = 0.002 * static_cast<double>(rows)},
                      {.name = "tiled", .median_ms = 0.001 * static_cast<double>(rows), .speedup = 2}}});
  const auto page = [&](const std::string& words) {
    return with_swept_tables("<!-- swept: " + words + " -->\n<!-- swept: end -->", "ch07", chapter, {sweep}, "README");
  };
  const std::string written = page("h200 transpose");
  EXPECT_THAT(written, HasSubstr("| 64 | 128 us | 64.0 us | 2.00x |"));
  EXPECT_THAT(written, HasSubstr("| 128 | 256 us | 128 us | 2.00x |"));
  EXPECT_THAT(written, HasSubstr("transpose on h200, 2026-01-02 at 012345678.\n"));
  EXPECT_EQ(with_swept_tables(written, "ch07", chapter, {sweep}, "README"), written);
  EXPECT_THAT(page("h200 scan"), HasSubstr("The sweep of scan was not recorded on h200 yet."));
  sweep.source_digest = "other";
  EXPECT_THAT(page("h200 transpose"), HasSubstr("stale"));
  EXPECT_THROW(page("h200 transposed"), base::Error);
}

TEST(CountedTable, WhatARunCountedIsRecorded) {
  evidence::SuiteResult suite{.run_id = "r", .pairs = {sample::passed_pair()}};
  evidence::PairResult& pair = suite.pairs.front();
  const base::ScratchDirectory folder;
  EXPECT_TRUE(evidence::record_counters(folder.path(), suite, sample::manifest()).empty()) << "nothing was counted";
  pair.variants.front().counters = {.source = "ncu", .passes = 3, .l2_hit_percent = 50, .report = "of_the_run.ncu-rep"};
  EXPECT_EQ(evidence::record_counters(folder.path(), suite, sample::manifest()), std::vector{pair.target});
  const std::vector<Counted> read = evidence::read_all_counted(folder.path());
  ASSERT_EQ(read.size(), 1u);
  EXPECT_EQ(read[0].target, pair.target);
  ASSERT_EQ(read[0].variants.size(), 1u);
  EXPECT_EQ(read[0].variants[0].counters.l2_hit_percent, 50);
  EXPECT_EQ(read[0].variants[0].counters.report, "");
  pair.scale = 0.5;
  EXPECT_TRUE(evidence::record_counters(folder.path(), suite, sample::manifest()).empty()) << "not at full size";
}

TEST(CountedTable, RefusesFilesOfAnotherPlaceOrVersion) {
  const base::ScratchDirectory folder;
  evidence::SuiteResult suite{.run_id = "r", .pairs = {sample::passed_pair()}};
  suite.pairs.front().variants.front().counters = {.source = "CUPTI", .passes = 3};
  evidence::record_counters(folder.path(), suite, sample::manifest());
  const std::filesystem::path counters = folder.path() / "h200/counters";
  const std::filesystem::path file = std::filesystem::directory_iterator { counters } -> path();
  EXPECT_THROW(evidence::parse_counted("{}", "x"), base::Error);
  std::filesystem::rename(file, counters / "ch07_other.json");
  EXPECT_THROW(evidence::read_all_counted(folder.path()), base::Error);
}

}  // namespace
}  // namespace aisp::report
