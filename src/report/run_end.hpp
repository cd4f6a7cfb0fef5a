// SPDX-License-Identifier: Apache-2.0
// Parts of what a terminal shows at the end of a run.
#pragma once
#include <string>
#include <string_view>

#include "base/system/terminal.hpp"
#include "evidence/run_summary.hpp"

namespace aisp::report {

// "5 passed, 16 skipped": what there is of each.
std::string outcomes_text(const evidence::Outcomes& outcomes, const base::Painter& paint = base::Painter{});

// "5 of 21 passed, 16 skipped; geometric mean speedup 9.43x"
std::string chapter_sentence(const evidence::ChapterSummary& chapter, const base::Painter& paint = base::Painter{});

// "ch01  5 of 21 passed, 16 skipped; geometric mean speedup 9.43x", a line for each chapter; nothing for a run of one pair.
std::string chapter_lines(const evidence::RunSummary& summary, const base::Painter& paint);

// Returns the word for the results of a run: pairs, or results of one at several sizes.
std::string_view counted(const evidence::SuiteResult& suite);

// "48 pairs skipped (ch01: 16, ch02: 6, ...): no NVIDIA driver" and what to do about it, once for each reason.
std::string skip_lines(const evidence::SuiteResult& suite, const base::Painter& paint);

// The five pairs that took longest and the stages in which they did; nothing where fewer than two ran.
std::string slowest_lines(const evidence::SuiteResult& suite, const base::Painter& paint);

// Names variants that are faster than their lower bounds at ceilings that are no guess; empty if none is by more than clocks
// differ.
std::string low_ceilings_line(const evidence::SuiteResult& suite);

// Returns a run in one sentence that can be passed on as it is: "155 of 157 pairs became faster on one NVIDIA H100, half of them
// 2.7x or more; ... 6 pairs have no result: 4 interrupted, 2 skipped (needs 2 GPUs, 1 visible)."
std::string summary_sentence(const evidence::RunRecord& run, const evidence::RunSummary& summary);

}  // namespace aisp::report
