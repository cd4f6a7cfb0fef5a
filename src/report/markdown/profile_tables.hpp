// SPDX-License-Identifier: Apache-2.0
// Profiles by --profile as tables of text: the same rows in Markdown and HTML. Private to report.
#pragma once
#include <string>
#include <vector>

#include "evidence/result.hpp"

namespace aisp::report {

struct ProfileTable {
  std::string title;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
};

// Those that have anything to show; none when no variant has a profile.
std::vector<ProfileTable> profile_tables(const evidence::PairResult& pair);

// profiles/profile.md; empty when no variant has a profile.
std::string profile_markdown(const evidence::PairResult& pair);

}  // namespace aisp::report
