// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "evidence/result.hpp"

namespace aisp::evidence {

// In plain words what changed from one profile to the other, what explains most time first: "40 launches became 1; idle fell from
// 61 % to 3 %". Without a full stop.
std::string profile_difference(const Profile& before, const Profile& after, bool with_idle = true);

// Compares the baseline with the lesson (else the best optimized variant, or the first with a profile where none may be claimed),
// or says why it cannot; empty where no profile was asked for.
std::string profile_sentence(const PairResult& pair);

}  // namespace aisp::evidence
