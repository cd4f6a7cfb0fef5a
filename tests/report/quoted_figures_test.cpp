// SPDX-License-Identifier: Apache-2.0
#include "report/markdown/quoted_figures.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"

namespace aisp::report {
namespace {

using evidence::Expectations;
using evidence::ExpectedPair;
using testing::HasSubstr;

std::vector<Expectations> recorded_expectations() {
  ExpectedPair pair{.baseline = "direct",
                    .baseline_median_ms = 4.2,
                    .baseline_cost = {.bytes = 4.2e6, .bytes_of = evidence::ByteKind::device_memory}};
  pair.variants["tiled"] = {.speedup = 7.72,
                            .median_ms = 0.544,
                            .percent_of_floor = 92.8,
                            .cost = {.bytes = 2.147e9, .bytes_of = evidence::ByteKind::device_memory}};
  pair.baseline_metrics = {{"images", {812.4, "images/s"}}};
  pair.variants["tiled"].metrics = {{"images", {6271000, "images/s"}},
                                    {"error", {0.0517, "% of (all|most) rows"}},
                                    {"moved", {524288.4, "B"}},
                                    {"splits", {8, ""}}};
  pair.variants["library"] = {.role = evidence::VariantRole::library, .speedup = 9.65, .median_ms = 0.435};
  return {{.hardware = "h100", .chapter = "ch07", .pairs = {{"transpose", {}}}},
          {.hardware = "h200", .chapter = "ch07", .pairs = {{"transpose", pair}}}};
}

std::string written(const std::string& page) { return with_quoted_figures(page, recorded_expectations(), "README.md"); }

std::string refusal_of_page(const std::string& page) {
  try {
    return "none, but " + written(page);
  } catch (const base::Error& error) {
    return error.what();
  }
}

TEST(QuotedFigures, AreWhatWasRecorded) {
  EXPECT_EQ(written("a 1x<!-- h200 ch07:transpose tiled speedup --> b 1 ms<!-- h200 ch07:transpose tiled time -->, "
                    "3 us<!-- h200 ch07:transpose direct time -->; 7 %<!-- h200 ch07:transpose tiled floor -->."),
            "a 7.72x<!-- h200 ch07:transpose tiled speedup --> b 544 us<!-- h200 ch07:transpose tiled time -->, "
            "4.20 ms<!-- h200 ch07:transpose direct time -->; 93 %<!-- h200 ch07:transpose tiled floor -->.");
}

TEST(QuotedFigures, ACommentMayTakeTwoLines) {
  EXPECT_EQ(written("1x<!-- h200 ch07:transpose\ntiled speedup -->"), "7.72x<!-- h200 ch07:transpose\ntiled speedup -->");
  EXPECT_THAT(refusal_of_page("1x<!--\nh200 ch07:transpose gone speedup -->"),
              HasSubstr("README.md: <!-- h200 ch07:transpose gone speedup -->: nothing of that name"));
}

TEST(QuotedFigures, OneVariantOverAnother) {
  EXPECT_EQ(written("1.0x<!-- h200 ch07:transpose tiled/library speedup -->"),
            "0.800x<!-- h200 ch07:transpose tiled/library speedup -->");
}

TEST(QuotedFigures, OneOfManyRequests) {
  EXPECT_EQ(written("1 us<!-- h200 ch07:transpose direct time/1000 -->, 1 ns<!-- h200 ch07:transpose tiled time/2097152 -->"),
            "4.20 us<!-- h200 ch07:transpose direct time/1000 -->, 0.259 ns<!-- h200 ch07:transpose tiled time/2097152 -->");
}

TEST(QuotedFigures, BandwidthIsOfTheBytesThatWereDeclared) {
  EXPECT_EQ(written("1 GB/s<!-- h200 ch07:transpose direct bandwidth -->, 1\nTB/s<!-- h200 ch07:transpose tiled bandwidth -->"),
            "1.00 GB/s<!-- h200 ch07:transpose direct bandwidth -->, 3.95\nTB/s<!-- h200 ch07:transpose tiled bandwidth -->");
}

TEST(QuotedFigures, MetricsHaveTheUnitOfThePair) {
  EXPECT_EQ(
      written("from 5 images/s<!-- h200 ch07:transpose direct metric:images --> to 12.5k\n"
              "images/s<!-- h200 ch07:transpose tiled metric:images -->, in 4<!-- h200 ch07:transpose tiled metric:splits -->"),
      "from 812 images/s<!-- h200 ch07:transpose direct metric:images --> to "
      "6.27M\nimages/s<!-- h200 ch07:transpose tiled metric:images -->, in 8<!-- h200 ch07:transpose tiled metric:splits -->");
  EXPECT_EQ(written("-1 % of (all|most) rows<!-- h200 ch07:transpose tiled metric:error -->"),
            "0.0517 % of (all|most) rows<!-- h200 ch07:transpose tiled metric:error -->");
  EXPECT_EQ(written("0 B<!-- h200 ch07:transpose tiled metric:moved -->"),
            "524288 B<!-- h200 ch07:transpose tiled metric:moved -->")
      << "k, M and G are for rates";
  EXPECT_EQ(written("2-5 images/s<!-- h200 ch07:transpose direct metric:images -->"),
            "2-812 images/s<!-- h200 ch07:transpose direct metric:images -->");
  const std::string right = "6.27M\nimages/s<!-- h200 ch07:transpose tiled metric:images -->";
  EXPECT_EQ(written(right), right);
  EXPECT_THAT(refusal_of_page("7 graphs/s<!-- h200 ch07:transpose tiled metric:images -->"),
              HasSubstr("no figure stands right before it, as in 6.27M images/s"));
}

TEST(QuotedFigures, FoldersOfAnyName) {
  std::vector<Expectations> all = recorded_expectations();
  all.back().chapter = "own_kernels";
  EXPECT_EQ(with_quoted_figures("1x<!-- h200 own_kernels:transpose tiled speedup -->", all, "README.md"),
            "7.72x<!-- h200 own_kernels:transpose tiled speedup -->");
}

TEST(QuotedFigures, KeepsALineBreakBeforeTheUnitOfARightOne) {
  const std::string page = "in 544\nus<!-- h200 ch07:transpose tiled time -->, 2x as fast";
  EXPECT_EQ(written(page), page);
}

TEST(QuotedFigures, OtherCommentsAreNoneOfItsBusiness) {
  const std::string page =
      "<!-- measured: begin -->\n12 ms<!-- not recorded: an example -->\n<!-- measured: end -->\n"
      "So it is not the width.<!-- answers ch07:transpose lesson:tiled control:aligned -->\n";
  EXPECT_EQ(written(page), page);
}

TEST(QuotedFigures, RefusesWhatNobodyRecorded) {
  for (const char* name :
       {"h20 ch07:transpose tiled speedup", "h200 ch08:transpose tiled speedup", "h200 ch07:box tiled speedup",
        "h200 ch07:transpose gone speedup", "h200 ch07:transpose tiled/gone speedup", "h200 ch07:transpose tiled width",
        "h200 ch07:transpose library floor", "h200 ch07:transpose tiled/library time", "h200 ch07:transpose library bandwidth",
        "h200 ch07:transpose tiled metric:rows", "h200 ch07:transpose library metric:images",
        "h200 ch07:transpose tiled/direct metric:images", "h200 ch07:transpose tiled images", "h200 ch07:transpose tiled time/0",
        "h200 ch07:transpose tiled time/many"})
    EXPECT_THAT(refusal_of_page("1x<!-- " + std::string{name} + " -->"),
                testing::AllOf(HasSubstr("README.md: <!-- " + std::string{name}), HasSubstr("nothing of that name is recorded")));
}

TEST(QuotedFigures, RefusesACommentWithoutAFigure) {
  EXPECT_THAT(refusal_of_page("fast<!-- h200 ch07:transpose tiled speedup -->"),
              HasSubstr("no figure stands right before it, as in 7.72x"));
  EXPECT_THAT(refusal_of_page("<!-- h200 ch07:transpose tiled speedup -->"), HasSubstr("no figure"));
}

}  // namespace
}  // namespace aisp::report
