// SPDX-License-Identifier: Apache-2.0
// An analysis as people read it.
#include <gmock/gmock.h>

#include <string>

#include "report/analysis/analysis.hpp"
#include "report/quote.hpp"

namespace aisp::report {
namespace {

using evidence::Analysis;
using evidence::AnalysisRow;
using evidence::Finding;

AnalysisRow row(const std::string& target, Finding finding, const std::string& detail) {
  AnalysisRow row;
  row.target = target;
  row.finding = finding;
  row.detail = detail;
  return row;
}

std::vector<std::string> findings_of(const Analysis& analysis) {
  std::vector<std::string> findings;
  for (const auto& cells : analysis_rows(analysis, base::Painter{})) findings.push_back(cells.back());
  return findings;
}

TEST(GithubText, HoldsNoControlsAndIsOneLine) {
  EXPECT_EQ(github_message("R\x1b]0;t\x07\xC2\x9B"
                           "2J\u202Ex"),
            "R ]0;t  2J x");
  EXPECT_EQ(github_message("50 %\na\r\n"), "50 %25%0Aa %0A");
  EXPECT_EQ(github_property("a:b,c\x1b\n::error::"), "a%3Ab%2Cc %0A%3A%3Aerror%3A%3A");
  EXPECT_EQ(github_message("\nx"), "%0Ax");
}

TEST(AnalysisText, WhatManyRowsSayIsToldOnceBelowThem) {
  Analysis analysis;
  const std::string elsewhere = "recorded on another";
  for (const char* target : {"ch03:docker", "ch03:gemm", "ch05:mmap"})
    analysis.rows.push_back(row(target, Finding::other_machine, elsewhere));
  analysis.rows.push_back(row("ch06:add", Finding::regressed, "its time changed"));
  analysis.rows.push_back(row("ch06:gemv", Finding::skipped, elsewhere));
  analysis.rows.push_back(row("ch07:scan", Finding::ok, ""));
  EXPECT_THAT(findings_of(analysis), testing::ElementsAre("finding", "other_machine", "other_machine", "other_machine",
                                                          "regressed: its time changed", "skipped: recorded on another", "ok"));
  EXPECT_EQ(analysis_reasons(analysis), "other_machine in 3 rows: recorded on another\n");
}

TEST(AnalysisText, WhatFewRowsSayStandsInThem) {
  Analysis analysis;
  for (const char* target : {"ch03:docker", "ch05:mmap"})
    analysis.rows.push_back(row(target, Finding::fresh, "nothing recorded"));
  EXPECT_THAT(findings_of(analysis), testing::ElementsAre("finding", "new: nothing recorded", "new: nothing recorded"));
  EXPECT_EQ(analysis_reasons(analysis), "");
}

TEST(AnalysisText, RowsWithoutADetailHaveNothingInCommon) {
  Analysis analysis;
  for (int i = 0; i < 5; ++i) analysis.rows.push_back(row("ch06:add", Finding::ok, ""));
  EXPECT_EQ(analysis_reasons(analysis), "");
}

}  // namespace
}  // namespace aisp::report
