// SPDX-License-Identifier: Apache-2.0
#include "evidence/comparison/comparison.hpp"

#include <algorithm>
#include <set>

#include "evidence/quantities.hpp"

namespace aisp::evidence {
namespace {

// One quantity of a variant in all turns.
using Turns = std::vector<const MetricChange*>;

bool same_quantity(const MetricChange& a, const MetricChange& b) {
  return a.target == b.target && a.variant == b.variant && a.metric == b.metric && a.unit == b.unit;
}

std::vector<Turns> quantities_of(const std::vector<RunComparison>& comparisons) {
  std::vector<Turns> all;
  for (const RunComparison& turn : comparisons)
    for (const MetricChange& metric : turn.metrics) {
      const auto found = std::ranges::find_if(all, [&](const Turns& turns) { return same_quantity(*turns.front(), metric); });
      (found == all.end() ? all.emplace_back() : *found).push_back(&metric);
    }
  return all;
}

// Readings without an interval (a preparation, a peak of memory) stay as the first turn compared them: the interval that covers
// two of them is none.
bool has_intervals(const MetricChange& metric) {
  return metric.metric == time_metric || metric.metric == speedup_metric || metric.metric == energy_metric ||
         (has_interval(metric.before) && has_interval(metric.after) && metric.metric != prepare_metric);
}

// Values are means over the processes of a side, intervals cover those of all.
MetricChange judged(const Turns& turns, double threshold) {
  MetricChange metric = *turns.front();
  for (const auto side : {&MetricChange::before, &MetricChange::after}) {
    Range& range = metric.*side;
    range.value = 0;
    for (const MetricChange* turn : turns) {
      const Range& own = turn->*side;
      range = {range.value + own.value / static_cast<double>(turns.size()), std::min(range.low, own.low),
               std::max(range.high, own.high)};
    }
  }
  metric.change_percent = change_percent(metric.before.value, metric.after.value);
  if (has_intervals(metric)) metric.change = change_of(metric.before, metric.after, metric.better, threshold);
  for (const MetricChange* turn : turns)
    if (metric.detail.empty()) metric.detail = turn->detail;
  return metric;
}

void add_statuses(const RunComparison& turn, RunComparison& comparison) {
  for (const StatusChange& status : turn.statuses)
    if (std::ranges::find(comparison.statuses, status.target, &StatusChange::target) == comparison.statuses.end())
      comparison.statuses.push_back(status);
}

// Marks what is surely slower: a time that is worse, or a speedup that is although the baseline's time did not get better.
void mark_regressions(std::vector<MetricChange>& metrics) {
  std::set<std::pair<std::string, std::string>> with_speedup;
  for (const MetricChange& metric : metrics)
    if (metric.metric == speedup_metric) with_speedup.emplace(metric.target, metric.variant);
  std::set<std::string> faster_baselines;
  for (const MetricChange& metric : metrics)
    if (metric.metric == time_metric && is_gain(metric.change) && !with_speedup.contains({metric.target, metric.variant}))
      faster_baselines.insert(metric.target);
  for (MetricChange& metric : metrics)
    metric.is_regression =
        metric.change == Change::worse &&
        (metric.metric == time_metric || (metric.metric == speedup_metric && !faster_baselines.contains(metric.target)));
}

}  // namespace

RunComparison compare_sides(const std::vector<RunRecord>& before, const std::vector<RunRecord>& after, double threshold) {
  std::vector<RunComparison> turns;
  for (std::size_t i = 0; i < std::min(before.size(), after.size()); ++i)
    turns.push_back(compare_runs(before[i], after[i], threshold));
  if (turns.empty()) return {.threshold = threshold};
  RunComparison comparison = turns.front();
  comparison.metrics.clear();
  for (const RunComparison& turn : turns) add_statuses(turn, comparison);
  for (const Turns& quantity : quantities_of(turns)) comparison.metrics.push_back(judged(quantity, threshold));
  mark_regressions(comparison.metrics);
  return comparison;
}

std::set<std::string> slower_targets(const RunComparison& comparison) {
  std::set<std::string> slower;
  for (const MetricChange& metric : comparison.metrics)
    if (metric.is_regression) slower.insert(metric.target);
  return slower;
}

}  // namespace aisp::evidence
