// SPDX-License-Identifier: Apache-2.0
// Samples and GPU states as pictures that stretch to the width they get. Private to report.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "report/html.hpp"

namespace aisp::report::html {

// The 95 % interval of a median by order statistics, without assumptions on the distribution. Nothing below six samples, where
// there is none.
struct Interval {
  double low = 0, high = 0;
};
std::optional<Interval> interval_of_median(std::vector<double> values);

// Every sample of every variant, a strip each. Empty where nothing was timed.
std::string sample_strips(const evidence::PairResult& pair);
// SM clock and power after each round, and what held the clock back. Empty without a GPU's state.
std::string gpu_states(const evidence::PairResult& pair, const HtmlReport& report);

}  // namespace aisp::report::html
