// SPDX-License-Identifier: Apache-2.0
#include "report/recorded_speedup.hpp"

#include <algorithm>

#include "base/text.hpp"

namespace aisp::report {
namespace {

using evidence::ExpectedPair;
using evidence::ExpectedVariant;

// Ends this far apart, as a ratio, say nothing that a reader could rely on.
constexpr double widest_ratio = 1.5;

bool is_near(double low, double high) { return low > 0 && high < widest_ratio * low; }

}  // namespace

bool RecordedSpeedup::is_steady() const { return is_near(range.low, range.high); }

evidence::Range seen_range(const ExpectedVariant& variant) {
  evidence::Range range{variant.speedup, variant.speedup, variant.speedup};
  for (const double speedup : variant.speedups) {
    range.low = std::min(range.low, speedup);
    range.high = std::max(range.high, speedup);
  }
  return range;
}

RecordedSpeedup recorded_speedup(const ExpectedVariant& variant) {
  const std::size_t runs = variant.speedups.size();
  if (runs < fewest_runs_for_an_interval) return {seen_range(variant), runs};
  return {{variant.speedup, variant.speedup_low, variant.speedup_high}, runs};
}

std::string recorded_gain(const ExpectedPair& pair, const std::string& variant, const std::string& over) {
  const auto gain = evidence::speed_over(pair, variant, over);
  const auto own = pair.variants.find(variant), other = pair.variants.find(over);
  if (!gain) return {};
  if (own != pair.variants.end() && other != pair.variants.end() &&
      own->second.speedups.size() == other->second.speedups.size()) {
    double low = *gain, high = *gain;
    for (std::size_t i = 0; i < own->second.speedups.size(); ++i) {
      const double of_run = own->second.speedups[i] / other->second.speedups[i];
      low = std::min(low, of_run);
      high = std::max(high, of_run);
    }
    if (!is_near(low, high)) return {};
  }
  return base::significant(*gain) + "x";
}

}  // namespace aisp::report
