// SPDX-License-Identifier: Apache-2.0
// An analysis as people read it.
#include <gmock/gmock.h>

#include <string>

#include "report/analysis/analysis.hpp"

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
