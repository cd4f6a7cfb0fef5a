// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "evidence/result.hpp"
#include "pair/session.hpp"
#include "verify/snapshot.hpp"

namespace aisp::verify {

struct ReferenceCheck {
  evidence::Accuracy accuracy;
  std::vector<std::string> problems;
};

// One output of one variant against the workload's float64 reference, on all elements or on Pair::reference_samples random ones
// (and the first and the last).
ReferenceCheck check_reference(pair::Session& session, const Variant& variant, int output, const Snapshot& snapshot,
                               std::uint64_t seed, int threads);

}  // namespace aisp::verify
