// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <vector>

#include "measure/sample.hpp"

namespace aisp::run {

// Times of the same work in two situations, each next to one of the other.
struct PairedTimes {
  static constexpr std::size_t fewest = 6;  // pairs of times, for a verdict

  std::vector<double> here_ms{}, there_ms{};

  void add(double here, double there) {
    here_ms.push_back(here);
    there_ms.push_back(there);
  }
  bool enough() const { return here_ms.size() >= fewest; }
  // Whether the work takes longer here, in the earlier half of the pairs and in the later one: in five of six pairs, and in the
  // median by half and 3 us. Of equal times, halves of three are in order by chance in one case of 64, halves of seven in one of
  // 256, and that by half on a machine that is disturbed in every second execution.
  bool longer_here() const;
};

// Whether a time is longer than another by half and 3 us. Where a heap was laid out otherwise, a baseline that allocates took a
// third longer.
bool longer(double here_ms, double there_ms);

// Whether times on inputs that another variant has met in the same round (`later_ms`) are shorter than those on inputs that it
// meets first, if only some of them are. Each time is of other inputs, so that times that depend on them are as independent as
// others.
bool taken_over(const std::vector<double>& first_ms, const std::vector<double>& later_ms);

// Compares samples before which all had to be idle (there), as before every execution of the verification, with those of
// neighbouring rounds.
PairedTimes beside_watched(const std::vector<measure::Sample>& samples);

}  // namespace aisp::run
