// SPDX-License-Identifier: Apache-2.0
// results.jsonl: a header line, then one PairResult a line, appended as results come. Every other report is made from it.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "evidence/result.hpp"

namespace aisp::evidence {

inline constexpr const char* results_log_file = "results.jsonl";

struct LogHeader {
  std::string run_id;
  std::string started_utc;
  LogCommand command = LogCommand::run;
};
std::string header_line(const LogHeader& header);
std::string to_line(const PairResult& result);

struct ResultsLog : LogHeader {
  std::vector<PairResult> results;    // each target once: its last line counts
  std::vector<std::string> warnings;  // a cut last line, as a crash while writing leaves it
};
// Parses the log; throws base::Error (usage) naming file and line for any other fault, including a result whose target, chapter
// and name do not match: they become names of files.
ResultsLog parse_results_log(std::string_view text, const std::string& source);
ResultsLog read_results_log(const std::filesystem::path& path);

// Reads a log's header; nothing if `path` does not begin with one.
std::optional<LogHeader> try_read_log_header(const std::filesystem::path& path);
// Whether `text` is what a crash leaves of the first line of the log of `run_id`: its beginning, without the newline.
bool is_unfinished_header(std::string_view text, const std::string& run_id);

}  // namespace aisp::evidence
