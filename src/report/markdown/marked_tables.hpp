// SPDX-License-Identifier: Apache-2.0
// Tables of READMEs that stand between <!-- KIND: HARDWARE PAIR... -->, alone on its lines, and a line <!-- KIND: end -->.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "evidence/recorded/counted.hpp"
#include "evidence/recorded/sweep.hpp"
#include "report/markdown/chapter_table.hpp"

namespace aisp::report {

// The page with what lies between such lines written anew: make(hardware, words behind it). Throws base::Error (usage) naming
// `place` and line where a mark has no end, or where make throws.
std::string with_marked_tables(
    const std::string& page, std::string_view kind, const std::string& place,
    const std::function<std::string(const std::string& hardware, const std::vector<std::string>& words)>& make);

// KIND counted, PAIR[/VARIANT...]: what hardware counters said, a row for the baseline, the lesson and the named variants of each
// pair, without columns that say nothing of any.
std::string with_counted_tables(const std::string& page, const std::string& chapter, const std::vector<KnownPair>& chapter_pairs,
                                const std::vector<evidence::Counted>& all, const std::string& place);

// KIND swept: for each pair a table of its recorded sweep, a row for each point.
std::string with_swept_tables(const std::string& page, const std::string& chapter, const std::vector<KnownPair>& chapter_pairs,
                              const std::vector<evidence::Sweep>& all, const std::string& place);

}  // namespace aisp::report
