// SPDX-License-Identifier: Apache-2.0
// The sections of the page. Private to report.
#pragma once
#include <string>
#include <vector>

#include "report/html/html.hpp"

namespace aisp::report::html {

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

}  // namespace aisp::report::html
