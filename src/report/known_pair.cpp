// SPDX-License-Identifier: Apache-2.0
#include "report/known_pair.hpp"

#include <algorithm>

namespace aisp::report {

// A library's speedup over the baseline that reads as 1.00x.
static constexpr double no_slower = 0.9995;

std::string fastest_library(const KnownPair& known, const evidence::ExpectedPair& recorded, const std::string& variant) {
  const auto step = std::ranges::find(known.steps, variant, &KnownPair::Step::name);
  std::string fastest;
  if (step == known.steps.end()) return fastest;
  double most = no_slower;
  for (const std::string& library : step->libraries)
    if (const double speedup = evidence::speed_over(recorded, library, recorded.baseline).value_or(0); speedup > most) {
      fastest = library;
      most = speedup;
    }
  return fastest;
}

bool is_stale(const KnownPair& known, const evidence::ExpectedPair& expected) {
  return std::ranges::find(known.source_digests, expected.source_digest) == known.source_digests.end();
}

}  // namespace aisp::report
