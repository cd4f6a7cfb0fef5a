// SPDX-License-Identifier: Apache-2.0
// Compares the variants of a pair by their samples: speedups, gains, shares of a library's speed.
#pragma once
#include <aisp/pair.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "evidence/result.hpp"
#include "measure/sample.hpp"
#include "measure/statistics/ratio.hpp"
#include "run/results/assemble.hpp"

namespace aisp::run {

// The value that decides between variants, one a sample: the time, or a metric, which has no stopwatch offset.
struct Judge {
  std::string metric;  // empty: the time
  std::uint64_t seed = 0;
  bool on_host = false;
};
// Returns baseline against variant, so that above 1 is better, whichever direction the metric has.
measure::Interval speedup_interval(const std::vector<measure::Sample>& baseline, const std::vector<measure::Sample>& variant,
                                   const Judge& judge, const measure::RatioOptions& options);
evidence::Speedup speedup_of(const measure::Interval& interval);
// Drops speedup, gain and library share of a variant that failed, or whose pair did.
void clear_claims(evidence::VariantResult& variant);
// Returns the number of calls after which their savings repay the compile time; nothing if a call saves none.
std::optional<double> calls_to_repay(double compile_ms, double baseline_ms, double variant_ms);

struct Timed {  // a variant in the rounds; the baseline is the first
  const Variant* variant = nullptr;
  evidence::VariantResult* result = nullptr;
  std::vector<measure::Sample> samples{};
};

struct Claims {
  std::string best;  // of the optimized variants that passed; empty without one
  std::vector<std::string> warnings;
};

// Returns a variant's speed over that of a member of the set of which it calls itself the fastest, where it is slower: surely,
// and by more than counts as none.
std::optional<measure::Interval> loss_to(const Timed& member, const Timed& best, const Judge& judge,
                                         const measure::Correction& correction);

// Sets each variant's speedup over the baseline, its gain over the step before it, its share of a library's speed, and the number
// of calls that repay its compile time.
Claims claim_speedups(const std::vector<Timed>& timed, const Judge& judge, const measure::Correction& correction,
                      std::string_view lesson);

}  // namespace aisp::run
