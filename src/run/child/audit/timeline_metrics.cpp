// SPDX-License-Identifier: Apache-2.0
#include "run/child/audit/timeline_metrics.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "measure/statistics/statistics.hpp"

namespace aisp::run {
namespace {

using evidence::Direction;
using profile::Timeline;

double ratio(std::uint64_t part, std::uint64_t whole) { return static_cast<double>(part) / static_cast<double>(whole); }

double idle_ns(const Timeline& timeline, double span_ns) {
  return std::max(0.0, span_ns - static_cast<double>(timeline.busy_ns));
}

// Collects metrics in the order in which they were first added.
class TimelineFigures {
 public:
  void add(const char* name, double value, const char* unit, Direction better) {
    auto found = std::ranges::find(metrics_, name, &evidence::Metric::name);
    if (found == metrics_.end()) {
      metrics_.push_back({.name = name, .unit = unit, .better = better, .summary = {}, .raw = {}});
      found = std::prev(metrics_.end());
    }
    found->raw.push_back(value);
  }
  std::vector<evidence::Metric> summarized(const std::vector<double>& percentiles) {
    for (evidence::Metric& metric : metrics_) metric.summary = measure::summarize(metric.raw, percentiles);
    return std::move(metrics_);
  }

 private:
  std::vector<evidence::Metric> metrics_;
};

}  // namespace

std::vector<evidence::Metric> timeline_metrics(const std::vector<AuditedRun>& runs, double timed_ms,
                                               const std::vector<double>& percentiles) {
  TimelineFigures metrics;
  for (const AuditedRun& run : runs) {
    const Timeline& timeline = run.audit.timeline;
    if (timeline.span_ns == 0) continue;
    const double recorded_ns = static_cast<double>(timeline.span_ns);
    const double span_ns = timed_ms > 0 ? std::min(recorded_ns, timed_ms * 1e6) : recorded_ns;
    if (timeline.link_ns > 0) metrics.add("overlap", 100 * ratio(timeline.hidden_ns, timeline.link_ns), "%", Direction::higher);
    if (timeline.kernels > 0) {
      metrics.add("concurrency", ratio(timeline.kernels_ns, timeline.kernel_ns), "", Direction::higher);
      metrics.add("kernels", static_cast<double>(timeline.kernels), "", Direction::lower);
    }
    if (timeline.copies > 0) metrics.add("copies", static_cast<double>(timeline.copies), "", Direction::lower);
    metrics.add("idle", idle_ns(timeline, span_ns) * 1e-3, "us", Direction::lower);
    metrics.add("idle_share", 100 * idle_ns(timeline, span_ns) / span_ns, "%", Direction::lower);
  }
  return metrics.summarized(percentiles);
}

}  // namespace aisp::run
