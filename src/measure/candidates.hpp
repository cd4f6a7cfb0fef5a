// SPDX-License-Identifier: Apache-2.0
// The choice of the fastest of several candidates from few timed executions of each.
#pragma once
#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

namespace aisp::measure {

struct CandidateCallbacks {
  std::function<std::optional<double>(std::size_t)> time_ms;  // of one execution; nothing if the candidate is refused
  std::function<double()> now_s;
};

struct Chosen {
  std::optional<std::size_t> candidate;  // nothing if all are refused
  std::vector<double> median_ms;         // of each candidate's executions; infinite for a refused one
  int rounds = 0;
};

// Times candidates in rounds of random order, fewer of them from round to round: those that are clearly slower than the best
// leave. Takes the earliest of the rest that the fastest one does not beat clearly, so that two searches agree.
Chosen choose_fastest(std::size_t count, const CandidateCallbacks& callbacks);

}  // namespace aisp::measure
