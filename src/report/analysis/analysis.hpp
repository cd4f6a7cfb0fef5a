// SPDX-License-Identifier: Apache-2.0
// An analysis (evidence/expectations/analysis.hpp) in every form that people and CI services read.
#pragma once
#include <string>
#include <vector>

#include "base/system/terminal.hpp"
#include "evidence/expectations/analysis.hpp"

namespace aisp::report {

// Rows of a table with a header, the finding last, with its detail unless analysis_reasons() tells it.
std::vector<std::vector<std::string>> analysis_rows(const evidence::Analysis& analysis, const base::Painter& paint);
// For below that table: a line for each detail that three rows or more have.
std::string analysis_reasons(const evidence::Analysis& analysis);
// "49 ok, 1 regressed (confirmed); 3 without an expectation"; ends with a newline.
std::string analysis_summary(const evidence::Analysis& analysis);

// proof_of_benefit.csv: RFC 4180, columns as docs/report-formats.md lists them, only ever growing at the end.
std::string proof_of_benefit_csv(const evidence::Analysis& analysis);
std::string analysis_json(const evidence::Analysis& analysis);
// A test case a row; failed and missing are errors, regressions failures, skipped is skipped.
std::string junit_xml(const evidence::Analysis& analysis);
// Workflow commands, ::error and ::warning, a line each.
std::string github_annotations(const evidence::Analysis& analysis);

// Speedups as github-action-benchmark reads them with tool "customBiggerIsBetter".
std::string github_action_benchmark(const evidence::Analysis& analysis);
// Times of all variants as Google Benchmark writes them, for what reads its JSON.
std::string google_benchmark(const std::vector<evidence::RunRecord>& runs);

}  // namespace aisp::report
