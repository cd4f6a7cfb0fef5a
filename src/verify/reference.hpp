// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "evidence/result.hpp"
#include "pair/session.hpp"
#include "pair/snapshot.hpp"

namespace aisp::verify {

struct ReferenceCheck {
  evidence::Accuracy accuracy;
  std::vector<std::string> problems;
};

// Elements of one output: all of them, or Pair::reference_samples random ones with the first and the last.
struct ReferenceSamples {
  std::vector<std::size_t> indices;
  std::vector<double> values;
};

// Drawn when the variant has run: it cannot know the places.
// At most `most` of them.
ReferenceSamples take_samples(const pair::Session& session, const pair::Snapshot& outputs, std::uint64_t seed,
                              std::size_t most = ~std::size_t{0});

// Those of one output of one variant against the workload's float64 reference, whose compute_reference() has been called.
ReferenceCheck check_reference(pair::Session& session, const Variant& variant, int output, const ReferenceSamples& samples,
                               int threads);

}  // namespace aisp::verify
