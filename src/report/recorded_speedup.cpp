// SPDX-License-Identifier: Apache-2.0
#include "report/recorded_speedup.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.hpp"
#include "report/numbers.hpp"

namespace aisp::report {
namespace {

using evidence::ExpectedPair;
using evidence::ExpectedVariant;

// Ends this far apart, as a ratio, say nothing that a reader could rely on.
constexpr double widest_ratio = 1.5;

bool is_near(double low, double high) { return low > 0 && high < widest_ratio * low; }

// "416 to 443 us"; one time where both read the same.
std::string times_text(const std::vector<double>& medians_ms, double median_ms) {
  const auto [least, most] = std::ranges::minmax_element(medians_ms);
  if (medians_ms.size() < 2) return base::display_ms(median_ms);
  std::string low = base::display_ms(*least);
  const std::string high = base::display_ms(*most);
  if (low == high) return high;
  const std::size_t blank = low.find(' ');
  if (blank != std::string::npos && high.ends_with(low.substr(blank))) low.resize(blank);
  return fmt::format("{} to {}", low, high);
}

std::string metric_of(const evidence::RecordedMetrics& metrics, const std::string& name) {
  const auto found = metrics.find(name);
  return found == metrics.end() ? "-" : metric_text(found->second);
}

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

std::string recorded_speedup_text(const ExpectedPair& pair, const ExpectedVariant& variant) {
  const RecordedSpeedup shown = recorded_speedup(variant);
  const std::string runs = base::plural(shown.runs, "run");
  const bool is_time = pair.judged_by == evidence::time_metric;
  if (!shown.is_steady())
    return is_time ? fmt::format("no ratio: {} against {}, {}", times_text(pair.baseline_medians_ms, pair.baseline_median_ms),
                                 times_text(variant.medians_ms, variant.median_ms), runs)
                   : fmt::format("no ratio: {} against {} of {}, {}", metric_of(pair.baseline_metrics, pair.judged_by),
                                 metric_of(variant.metrics, pair.judged_by), pair.judged_by, runs);
  const std::string ratio = base::significant(shown.range.value) + "x", metric = is_time ? "" : " of " + pair.judged_by;
  const std::string low = base::significant(shown.range.low), high = base::significant(shown.range.high);
  if (shown.runs >= fewest_runs_for_an_interval) return fmt::format("{} [{}, {}]{}, {}", ratio, low, high, metric, runs);
  return shown.runs > 1 ? fmt::format("{}{} ({} to {}, {})", ratio, metric, low, high, runs)
                        : fmt::format("{}{} ({})", ratio, metric, runs);
}

std::string short_recorded_speedup(const ExpectedPair& pair, const ExpectedVariant& variant) {
  if (recorded_speedup(variant).is_steady()) return base::significant(variant.speedup) + "x";
  return pair.judged_by == evidence::time_metric ? base::display_ms(variant.median_ms)
                                                 : metric_of(variant.metrics, pair.judged_by);
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
