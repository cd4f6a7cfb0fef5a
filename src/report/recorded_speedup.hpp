// SPDX-License-Identifier: Apache-2.0
// Speedups over recorded runs, as tables and pictures show them.
#pragma once
#include <cstddef>
#include <string>

#include "evidence/expectations/expectations.hpp"
#include "evidence/range.hpp"

namespace aisp::report {

// From this many runs on, their spread tells where further ones fall; of fewer, the range that was seen is shown.
inline constexpr std::size_t fewest_runs_for_an_interval = 5;

struct RecordedSpeedup {
  evidence::Range range;  // the median of the runs; its ends are those of the interval of further runs, or the least and greatest
  std::size_t runs = 0;
  // Whether the ends are so near to one another that the ratio says something.
  bool is_steady() const;
};
RecordedSpeedup recorded_speedup(const evidence::ExpectedVariant& variant);
// The median of the runs with the least and the greatest of them.
evidence::Range seen_range(const evidence::ExpectedVariant& variant);

// "1.36x" over another variant; empty where one of both was not recorded or the ratio is not steady.
std::string recorded_gain(const evidence::ExpectedPair& pair, const std::string& variant, const std::string& over);

}  // namespace aisp::report
