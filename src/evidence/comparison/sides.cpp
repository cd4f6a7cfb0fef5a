// SPDX-License-Identifier: Apache-2.0
#include "evidence/comparison/comparison.hpp"

#include <algorithm>
#include <set>

#include "evidence/quantities.hpp"

namespace aisp::evidence {
namespace {

struct Gathered {
  MetricChange change;
  double before_sum = 0, after_sum = 0;
  int processes = 0;
};

bool same_quantity(const MetricChange& a, const MetricChange& b) {
  return a.target == b.target && a.variant == b.variant && a.metric == b.metric && a.unit == b.unit;
}

void widen(Range& range, const Range& other) {
  range.low = std::min(range.low, other.low);
  range.high = std::max(range.high, other.high);
}

void gather(const Comparison& turn, std::vector<Gathered>& all) {
  for (const MetricChange& metric : turn.metrics) {
    auto found = std::find_if(all.begin(), all.end(), [&](const Gathered& g) { return same_quantity(g.change, metric); });
    if (found == all.end()) found = all.insert(all.end(), {.change = metric});
    widen(found->change.before, metric.before);
    widen(found->change.after, metric.after);
    found->before_sum += metric.before.value;
    found->after_sum += metric.after.value;
    ++found->processes;
    if (found->change.detail.empty()) found->change.detail = metric.detail;
  }
}

// Readings without an interval (a preparation, a peak of memory) are as they were compared: a hull of two is none either.
bool has_intervals(const MetricChange& metric) {
  return metric.metric == time_metric || metric.metric == speedup_metric || metric.metric == energy_metric ||
         (metric.before.low < metric.before.high && metric.after.low < metric.after.high && metric.metric != prepare_metric);
}

MetricChange judged(const Gathered& gathered, double threshold) {
  MetricChange metric = gathered.change;
  metric.before.value = gathered.before_sum / gathered.processes;
  metric.after.value = gathered.after_sum / gathered.processes;
  metric.change_percent = change_percent(metric.before.value, metric.after.value);
  if (has_intervals(metric)) metric.change = change_of(metric.before, metric.after, metric.better, threshold);
  return metric;
}

void add_statuses(const Comparison& turn, Comparison& comparison) {
  for (const StatusChange& status : turn.statuses)
    if (std::none_of(comparison.statuses.begin(), comparison.statuses.end(),
                     [&](const StatusChange& known) { return known.target == status.target; }))
      comparison.statuses.push_back(status);
}

}  // namespace

Comparison compare_sides(const std::vector<RunRecord>& before, const std::vector<RunRecord>& after, double threshold) {
  Comparison comparison;
  std::vector<Gathered> all;
  for (std::size_t i = 0; i < std::min(before.size(), after.size()); ++i) {
    Comparison turn = compare_runs(before[i], after[i], threshold);
    gather(turn, all);
    if (i == 0) comparison = std::move(turn);
    else add_statuses(turn, comparison);
  }
  comparison.metrics.clear();
  for (const Gathered& gathered : all) comparison.metrics.push_back(judged(gathered, threshold));
  return comparison;
}

std::vector<std::string> slower_targets(const Comparison& comparison) {
  const auto is_baseline = [&](const MetricChange& time) {
    return std::none_of(comparison.metrics.begin(), comparison.metrics.end(), [&](const MetricChange& other) {
      return other.metric == speedup_metric && other.target == time.target && other.variant == time.variant;
    });
  };
  std::set<std::string> slower, faster_baselines;
  for (const MetricChange& metric : comparison.metrics) {
    if (metric.metric != time_metric) continue;
    if (metric.change == Change::worse) slower.insert(metric.target);
    const bool better = metric.change == Change::better || metric.change == Change::slightly_better;
    if (better && is_baseline(metric)) faster_baselines.insert(metric.target);
  }
  for (const MetricChange& metric : comparison.metrics)
    if (metric.metric == speedup_metric && metric.change == Change::worse && !faster_baselines.contains(metric.target))
      slower.insert(metric.target);
  return {slower.begin(), slower.end()};
}

}  // namespace aisp::evidence
