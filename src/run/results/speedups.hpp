// SPDX-License-Identifier: Apache-2.0
// Compares the variants of a pair by their samples.
#pragma once
#include <aisp/pair.hpp>

#include <string>
#include <string_view>
#include <vector>

#include "evidence/result.hpp"
#include "measure/sample.hpp"
#include "run/results/assemble.hpp"

namespace aisp::run {

struct Timed {  // a variant that takes part in the rounds; the baseline is the first of them
  const Variant* variant = nullptr;
  evidence::VariantResult* result = nullptr;
  std::vector<measure::Sample> samples{};
};

struct Claims {
  std::string best;  // of the optimized variants that passed; empty without one
  std::vector<std::string> warnings;
};

// Gives each variant its speedup over the baseline, what it brings over the step before it, its share of a library's speed, and
// after how many calls it has gained back what compiling it took.
Claims claim_speedups(const std::vector<Timed>& timed, const Judge& judge, const measure::Correction& correction,
                      std::string_view lesson);

}  // namespace aisp::run
