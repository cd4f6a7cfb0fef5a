// SPDX-License-Identifier: Apache-2.0
// results.jsonl: a header line, then one PairResult a line, appended as results come. Every other report is made from it.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "evidence/result.hpp"

namespace aisp::evidence {

inline constexpr const char* results_log_file = "results.jsonl";

std::string header_line(const std::string& run_id, const std::string& started_utc);
std::string to_line(const PairResult& result);

struct ResultsLog {
  std::string run_id;
  std::string started_utc;
  std::vector<PairResult> results;    // a target once: its last line counts
  std::vector<std::string> warnings;  // a cut last line, as a crash while writing leaves it
};
// Throws base::Error (usage) naming file and line for anything else that is wrong, a result whose target, chapter and name do not
// belong together included: they become names of files.
ResultsLog parse_results_log(std::string_view text, const std::string& source);
ResultsLog read_results_log(const std::filesystem::path& path);

}  // namespace aisp::evidence
