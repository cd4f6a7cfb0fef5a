// SPDX-License-Identifier: Apache-2.0
// Numbers as reports print them, the same everywhere.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "evidence/expectations/expectations.hpp"
#include "evidence/result.hpp"
#include "evidence/run_summary.hpp"

namespace aisp::report {

// Returns how a pair was timed: "Timed by events from a released start, cold cache, judged by time; ... Samples fill 35 % of 0.61
// s, SM clock 1980 MHz (median)."; empty where nothing was timed. A chip at its power cap runs faster the longer it rests between
// samples.
std::string timed_text(const evidence::PairResult& pair);

std::string chapter_title(std::string_view chapter);         // "ch07": "Chapter 7"; other names as they are
std::string speedup_text(const evidence::Speedup& speedup);  // "3.04x [3.02, 3.06]"
// "1.36x over device_scalars" and "91 % of cublas"; empty where none may be claimed.
std::string gain_text(const evidence::PairResult& pair, const evidence::VariantResult& variant);
std::string share_text(const evidence::PairResult& pair, const evidence::VariantResult& variant);
// The variant that a pair's headline is about: that of its lesson, or the best where it has none; null when none may be claimed.
const evidence::VariantResult* headline(const evidence::PairResult& pair);
// Describes a variant that is declared as run by nobody: "not run", or "not run before" if this run has run it.
std::string not_run_text(const evidence::VariantResult& variant);
// "library", "control, not verified", "lesson, best", "best"; empty for other steps. Of what may be claimed only.
std::string standing_text(const evidence::PairResult& pair, const evidence::VariantResult& variant);
std::string median_text(const evidence::VariantResult& variant);  // "0.541 ms"; "-" without timing
// "93 % of memory (4.25 TB/s)"; "~93 % of compute (bf16) (~739 TFLOP/s)" of a guessed ceiling.
std::string floor_text(const evidence::Floor& floor);
std::string_view guess_mark(evidence::CeilingFrom from);  // "~" before what stands on a guess, "" before others

// "5.21M" of 5.21M tokens/s, "0.0123", "4". Prefixes stand in rates only: "2k ms" is no time.
std::string metric_number(const evidence::RecordedMetric& metric);

// "NVIDIA H200, driver 580.159, CUDA 13.0, power limit 700 W"; the CPU of a host pair.
std::string machine_text(const evidence::Recorded& recorded);

std::string joules_text(double joules);                         // "0.211 J", "35.2 mJ", "8.1 uJ"
std::string energy_ratio_text(const evidence::Energy& energy);  // "2.91x [2.90, 2.93]"; "-" for the baseline

// Tables that are the same in every report, headings first; nothing but them where no variant has such a result.
using Rows = std::vector<std::vector<std::string>>;
Rows quantity_rows(const evidence::PairResult& pair, std::string_view group);  // `group`: of evidence::quantities()
Rows kernel_rows(const evidence::PairResult& pair);
Rows stage_rows(const evidence::PairResult& pair);
Rows counters_table(const evidence::PairResult& pair);  // of hardware; without any not even headings
Rows cost_table(const evidence::SuiteResult& suite);    // declared against measured cost of every pair

}  // namespace aisp::report
