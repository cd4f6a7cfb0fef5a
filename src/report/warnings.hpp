// SPDX-License-Identifier: Apache-2.0
// Warnings and notes of all pairs of a run, each sentence once.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "evidence/result.hpp"

namespace aisp::report {

struct Said {
  std::string text;                                // numbers that differ from pair to pair as "3 to 27 %"
  std::vector<const evidence::PairResult*> pairs;  // each once
};

// Groups pairs by the texts that `texts_of` returns of each, in order of first appearance.
std::vector<Said> grouped_by(const std::vector<evidence::PairResult>& pairs,
                             const std::function<std::vector<std::string>(const evidence::PairResult&)>& texts_of);
// Return the warnings, or the notes, of all pairs in order of first appearance. Texts that differ in percentages, bytes and
// numbers in parentheses are one.
std::vector<Said> warnings_of(const std::vector<evidence::PairResult>& pairs);
std::vector<Said> notes_of(const std::vector<evidence::PairResult>& pairs);

}  // namespace aisp::report
