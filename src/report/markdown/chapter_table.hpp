// SPDX-License-Identifier: Apache-2.0
// The measured tables of a chapter's README, from recorded expectations.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "evidence/expectations/expectations.hpp"

namespace aisp::report {

inline constexpr std::string_view table_begin = "<!-- measured: begin -->";
inline constexpr std::string_view table_end = "<!-- measured: end -->";

// A pair as this executable has it.
struct KnownPair {
  struct Step {
    std::string name, gains_over;             // never empty
    std::vector<std::string> libraries = {};  // that it may be held against: as precise as it is, or more
  };
  std::string chapter, name, teaches, lesson;
  std::vector<Step> steps;                  // the optimized variants, in their order
  std::vector<std::string> source_digests;  // for each architecture it was built for
};

// Markdown: a row for each pair and kind of hardware it was recorded on, "not measured yet" for the others; what the hardware
// was and when; then a table of steps, controls, libraries and metrics. `chapter_pairs` are those of `chapter`; `all` may hold
// other chapters too.
std::string chapter_table(const std::string& chapter, const std::vector<KnownPair>& chapter_pairs,
                          const std::vector<evidence::Expectations>& all);

// The README with `table` between its two markers, each on a line of its own; throws base::Error (usage) naming `place` when
// they are not there once each, in order.
std::string with_table(const std::string& readme, const std::string& table, const std::string& place);

// The fastest of the libraries that the variant may be held against; empty where none was recorded, and where all are slower than
// the baseline: what beats such a library says nothing.
std::string fastest_library(const KnownPair& known, const evidence::ExpectedPair& recorded, const std::string& variant);

// Recorded, but of code that is not this executable's any more.
bool is_stale(const KnownPair& known, const evidence::ExpectedPair& expected);

}  // namespace aisp::report
