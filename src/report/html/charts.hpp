// SPDX-License-Identifier: Apache-2.0
// Samples and GPU states as pictures that stretch to the width they get. Private to report.
#pragma once
#include <string>

#include "report/html/html.hpp"

namespace aisp::report::html {

// The speedup of every variant, in their order. Empty where there is none.
std::string ladder(const evidence::PairResult& pair);
// Every sample of every variant, a strip each. Empty where nothing was timed.
std::string sample_strips(const evidence::PairResult& pair);
// SM clock and power after each round, and what held the clock back. Empty without a GPU's state.
std::string gpu_states(const evidence::PairResult& pair, const HtmlReport& report);

}  // namespace aisp::report::html
