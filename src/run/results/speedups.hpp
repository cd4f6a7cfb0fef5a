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

struct Timed {  // a variant in the rounds; the baseline is the first
  const Variant* variant = nullptr;
  evidence::VariantResult* result = nullptr;
  std::vector<measure::Sample> samples{};
};

struct Claims {
  std::string best;  // of the optimized variants that passed; empty without one
  std::vector<std::string> warnings;
};

// Sets each variant's speedup over the baseline, its gain over the step before it, its share of a library's speed, and the number
// of calls that repay its compile time.
Claims claim_speedups(const std::vector<Timed>& timed, const Judge& judge, const measure::Correction& correction,
                      std::string_view lesson);

}  // namespace aisp::run
