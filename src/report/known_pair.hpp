// SPDX-License-Identifier: Apache-2.0
// A pair as this executable has it, for what shows records beside it.
#pragma once
#include <string>
#include <vector>

#include "evidence/expectations/expectations.hpp"

namespace aisp::report {

struct KnownPair {
  struct Step {
    std::string name, gains_over;             // never empty
    std::vector<std::string> libraries = {};  // that it may be held against: as precise as it is, or more
  };
  std::string chapter, name, teaches, lesson;
  std::vector<Step> steps;                  // the optimized variants, in their order
  std::vector<std::string> source_digests;  // for each architecture it was built for
};

// The fastest of the libraries that the variant may be held against; empty where none was recorded, and where all are slower than
// the baseline: what beats such a library says nothing.
std::string fastest_library(const KnownPair& known, const evidence::ExpectedPair& recorded, const std::string& variant);

// Recorded, but of code that is not this executable's any more.
bool is_stale(const KnownPair& known, const evidence::ExpectedPair& expected);

}  // namespace aisp::report
