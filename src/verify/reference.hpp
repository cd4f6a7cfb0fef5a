// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "evidence/result.hpp"
#include "pair/memory/snapshot.hpp"
#include "pair/session.hpp"
#include "verify/verifier.hpp"

namespace aisp::verify {

struct ReferenceCheck {
  evidence::Accuracy accuracy;
  Difference problem;
  // Upper bound, from the samples, of all elements' relative L2 distance from the unquantized reference.
  double most_from_truth = 0;
};

// Returns ", group 3 of 32", or nothing if there are no groups.
std::string in_group(const pair::Norms& norms);

// Elements of one output: all of them, or about Pair::reference_samples random ones with the first and the last; for an output
// with groups, enough of each sampled group.
struct ReferenceSamples {
  std::vector<std::size_t> indices;
  std::vector<double> values;
  bool few = false;  // fewer than the pair's number of samples, so that their norm may be off
};

// Draws places after the variant has run, so that it cannot know them. At most `most` of them.
ReferenceSamples take_samples(const pair::Session& session, const pair::Snapshot& outputs, std::uint64_t seed,
                              std::size_t most = ~std::size_t{0});

// Values of the workload's float64 reference for the present inputs, whose compute_reference() has been called. Variants are
// compared in mostly the same elements, and a value can take a dot product of thousands of generated values, so each output's
// last values are cached.
class ReferenceValues {
 public:
  ReferenceValues(pair::Session& session, int threads);
  const std::vector<double>& of(int output, const std::vector<std::size_t>& indices);
  // Returns the values for operands as `variant` quantizes them.
  std::vector<double> quantized(const Variant& variant, int output, const std::vector<std::size_t>& indices) const;

 private:
  struct Kept {
    std::vector<std::size_t> indices;
    std::vector<double> values;
  };
  const Workload& workload_;
  int threads_;
  std::vector<Kept> kept_;
};

// Compares samples of one output of one variant with the reference.
ReferenceCheck check_reference(pair::Session& session, const Variant& variant, int output, const ReferenceSamples& samples,
                               ReferenceValues& reference);

}  // namespace aisp::verify
