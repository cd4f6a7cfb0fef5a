// SPDX-License-Identifier: Apache-2.0
// The sections of the page. Private to report.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "evidence/run_record.hpp"
#include "report/html/html.hpp"
#include "report/numbers.hpp"
#include "report/pictures/bar_picture.hpp"

namespace aisp::report {

// The files of src/report/html/page, which the build embeds.
extern const char* const page_frame;
extern const char* const page_style;
extern const char* const page_script;

// Returns `text` with each {{name}} replaced by the value of that name, which is put in as it is.
std::string filled(std::string_view text, const std::map<std::string, std::string, std::less<>>& values);

// One run beside another, as times and as shares of what each machine gives.
struct Machines {
  std::string summary;
  BarChart speed;       // times of the other run over those of this one
  BarChart normalised;  // shares of the lower bound, this run's over the other's
  Rows rows;            // headings first
};

// The headline() of each pair of `run`, with the same variant of `other`.
Machines compare_machines(const evidence::RunRecord& run, const evidence::RunRecord& other);

namespace html {

// In the order of their chapters; what was skipped has nothing to show and comes last in its chapter.
std::vector<const evidence::PairResult*> by_chapter(const HtmlReport& report);

// A section is empty where there is nothing to show.
std::string summary_part(const HtmlReport& report);
std::string overview_part(const HtmlReport& report);
std::string problems_section(const HtmlReport& report);
std::string results_section(const HtmlReport& report);
std::string sweep_section(const HtmlReport& report);
std::string roofline_section(const HtmlReport& report);
std::string against_section(const HtmlReport& report);
std::string history_section(const HtmlReport& report);
std::string pairs_section(const HtmlReport& report);
std::string manifest_section(const HtmlReport& report);
// Shows a pair's code: the parts of the baseline next to those of the best variant, then places for whole files.
std::string source_part(const evidence::PairResult& pair, const PairSource& source);
// The whole files, each once however many pairs show it.
std::string source_files(const HtmlReport& report);
// Return what --profile saw: in one sentence, and all of it; empty if nothing was profiled.
std::string profile_sentence_part(const evidence::PairResult& pair);
std::string profile_part(const evidence::PairResult& pair);

// Samples and GPU states as pictures that stretch to the width they get; each is empty where there is nothing to show.
// The speedup of every variant, in their order.
std::string ladder(const evidence::PairResult& pair);
// Every sample of every variant, a strip each.
std::string sample_strips(const evidence::PairResult& pair);
// SM clock and power after each round, and what held the clock back.
std::string gpu_states(const evidence::PairResult& pair, const HtmlReport& report);

}  // namespace html
}  // namespace aisp::report
