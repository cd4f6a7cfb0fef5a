// SPDX-License-Identifier: Apache-2.0
// What hardware counters said of some of a chapter's pairs, in its README, from recorded counters.
#pragma once
#include <string>
#include <vector>

#include "evidence/counted.hpp"
#include "report/markdown/chapter_table.hpp"

namespace aisp::report {

// The page with what lies between <!-- counted: HARDWARE PAIR[/VARIANT...] ... --> and <!-- counted: end --> written anew, each
// on a line of its own: a row for the baseline, the lesson and the named variants of each pair, without columns that say nothing
// of any. Throws base::Error (usage) naming `place` where a mark has no end, or names what the chapter has not.
std::string with_counted_tables(const std::string& page, const std::string& chapter, const std::vector<KnownPair>& chapter_pairs,
                                const std::vector<evidence::Counted>& all, const std::string& place);

}  // namespace aisp::report
