// SPDX-License-Identifier: Apache-2.0
// Analyses, comparisons and histories (evidence/expectations, evidence/comparison) in every form that people and CI services
// read.
#pragma once
#include <string>
#include <vector>

#include "base/system/terminal.hpp"
#include "evidence/comparison/comparison.hpp"
#include "evidence/comparison/history.hpp"
#include "evidence/expectations/analysis.hpp"

namespace aisp::report {

// Rows of a table with a header, the finding last, with its detail unless analysis_reasons() tells it.
std::vector<std::vector<std::string>> analysis_rows(const evidence::Analysis& analysis, const base::Painter& paint);
// Returns the text below that table: a line for each detail that three rows or more have.
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

// Rows of a table with a header; only what changed unless `all`. A change below its threshold is slight.
std::vector<std::vector<std::string>> comparison_rows(const evidence::RunComparison& comparison, bool all,
                                                      const base::Painter& paint);
// Returns the text above the table about runs of two machines; ends with a newline unless empty.
std::string comparison_heading(const evidence::RunComparison& comparison);
// Returns the text below the table: changed statuses, pairs of one side only, likely causes. Ends with a newline unless empty.
std::string comparison_notes(const evidence::RunComparison& comparison);
// "b compared with a", for one of several comparisons.
std::string comparison_title(const evidence::RunComparison& comparison);
// "b is 1.90x a over 40 kernels of 17 pairs ...", with its newline; empty where no time of both is known.
std::string overall_text(const evidence::RunComparison& comparison);
// One comparison, or a list of several; `raw`: with the samples behind each value.
std::string comparison_json(const std::vector<evidence::RunComparison>& comparisons, bool raw = false);

std::vector<std::vector<std::string>> history_rows(const std::vector<evidence::Series>& history, bool all);
std::string history_notes(const std::vector<evidence::Series>& history);
std::string history_json(const std::vector<evidence::Series>& history);

}  // namespace aisp::report
