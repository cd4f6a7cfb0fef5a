// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "evidence/result.hpp"

namespace aisp::evidence {

// Returns what changed from one profile to the other, at most four figures: "launches 40 -> 1, idle 61 % -> 3 %".
std::string profile_difference(const Profile& before, const Profile& after, bool with_idle = true);

// Compares the baseline with the lesson (else the best optimized variant, or the first with a profile where none may be claimed),
// or says why it cannot; empty where no profile was asked for.
std::string profile_sentence(const PairResult& pair);

}  // namespace aisp::evidence
