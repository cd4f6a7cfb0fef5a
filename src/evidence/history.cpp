// SPDX-License-Identifier: Apache-2.0
#include "evidence/history.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <tuple>

#include "evidence/comparison.hpp"
#include "evidence/expectations.hpp"
#include "evidence/range.hpp"

namespace aisp::evidence {
namespace {

constexpr std::size_t fewest_values = 10;
constexpr double largest_p_value = 0.01;
constexpr int permutations = 999;

// Ranks from 1, ties share their mean.
std::vector<double> ranks_of(std::span<const double> values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (std::size_t i = 0; i < order.size();) {
    std::size_t end = i + 1;
    while (end < order.size() && values[order[end]] == values[order[i]]) ++end;
    for (std::size_t k = i; k < end; ++k) ranks[order[k]] = (static_cast<double>(i + end) + 1) / 2;
    i = end;
  }
  return ranks;
}

struct Cut {
  std::size_t at = 0;
  double statistic = 0;
};

Cut strongest_cut(const std::vector<double>& ranks) {
  const double count = static_cast<double>(ranks.size());
  Cut best;
  double sum = 0;
  for (std::size_t left = 1; left < ranks.size(); ++left) {
    sum += ranks[left - 1];
    const double n = static_cast<double>(left);
    const double deviation = std::sqrt(n * (count - n) * (count + 1) / 12);
    const double statistic = std::abs(sum - n * (count + 1) / 2) / deviation;
    if (statistic > best.statistic) best = {left, statistic};
  }
  return best;
}

double chance_of(double statistic, std::vector<double> ranks) {
  std::mt19937_64 random{1};
  int as_strong = 1;  // the series itself is one of its permutations
  for (int i = 0; i < permutations; ++i) {
    std::shuffle(ranks.begin(), ranks.end(), random);
    as_strong += strongest_cut(ranks).statistic >= statistic - 1e-9;
  }
  return as_strong / static_cast<double>(permutations + 1);
}

double median_of(std::span<const double> values) { return median_range(values).value; }

void search(std::span<const double> values, std::size_t offset, std::vector<Step>& steps) {
  if (values.size() < fewest_values) return;
  const std::vector<double> ranks = ranks_of(values);
  const Cut cut = strongest_cut(ranks);
  if (cut.at == 0) return;
  const double before = median_of(values.first(cut.at)), after = median_of(values.subspan(cut.at));
  const bool matters = std::abs(after - before) >= smallest_change * std::abs(before);
  const double p_value = matters ? chance_of(cut.statistic, ranks) : 1;
  if (p_value > largest_p_value) return;
  search(values.first(cut.at), offset, steps);
  steps.push_back({offset + cut.at, before, after, p_value});
  search(values.subspan(cut.at), offset + cut.at, steps);
}

struct Point {
  const RunRecord* run;
  const PairResult* pair;
  double value;
};

SeriesStep explained(const Step& step, const std::vector<Point>& points) {
  const Point& before = points[step.at - 1];
  const Point& after = points[step.at];
  SeriesStep result;
  static_cast<Step&>(result) = step;
  result.run_id = after.run->manifest.run_id;
  result.source_changed = before.pair->source_digest != after.pair->source_digest;
  result.causes = likely_causes(before.run->manifest, after.run->manifest);
  return result;
}

using Key = std::tuple<std::string, std::string, std::string, std::string, std::string>;

void add_points(const RunRecord& run, std::map<Key, std::vector<Point>>& series) {
  for (const PairResult& pair : run.pairs) {
    if (not_recordable(pair)) continue;
    const std::string hardware = hardware_key(pair, run.manifest);
    for (const VariantResult& variant : pair.variants) {
      if (variant.role != VariantRole::optimized || variant.status != Status::passed || !variant.timing || !variant.speedup)
        continue;
      const auto add = [&](const char* quantity, double value) {
        series[{pair.target, variant.name, hardware, run.manifest.hostname, quantity}].push_back({&run, &pair, value});
      };
      add("speedup", variant.speedup->value);
      add("median_ms", variant.timing->summary.median);
    }
  }
}

}  // namespace

std::vector<Step> find_steps(std::span<const double> values) {
  std::vector<Step> steps;
  search(values, 0, steps);
  // Levels between neighbouring steps, now that all of them are known.
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::size_t begin = i == 0 ? 0 : steps[i - 1].at;
    const std::size_t end = i + 1 == steps.size() ? values.size() : steps[i + 1].at;
    steps[i].before = median_of(values.subspan(begin, steps[i].at - begin));
    steps[i].after = median_of(values.subspan(steps[i].at, end - steps[i].at));
  }
  return steps;
}

std::vector<Series> history(const std::vector<RunRecord>& runs) {
  std::map<Key, std::vector<Point>> found;
  for (const RunRecord& run : runs) add_points(run, found);
  std::vector<Series> all;
  for (auto& [key, points] : found) {
    std::stable_sort(points.begin(), points.end(),
                     [](const Point& a, const Point& b) { return a.pair->started_utc < b.pair->started_utc; });
    Series series;
    std::tie(series.target, series.variant, series.hardware, series.machine, series.quantity) = key;
    for (const Point& point : points) {
      series.run_ids.push_back(point.run->manifest.run_id);
      series.values.push_back(point.value);
    }
    for (const Step& step : find_steps(series.values)) series.steps.push_back(explained(step, points));
    all.push_back(std::move(series));
  }
  return all;
}

}  // namespace aisp::evidence
