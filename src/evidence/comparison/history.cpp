// SPDX-License-Identifier: Apache-2.0
#include "evidence/comparison/history.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <tuple>

#include "evidence/comparison/comparison.hpp"
#include "evidence/expectations/expectations.hpp"
#include "evidence/expectations/fingerprint.hpp"
#include "evidence/range.hpp"

namespace aisp::evidence {
namespace {

constexpr std::size_t fewest_values = 10;
constexpr double largest_p_value = 0.01;
constexpr int permutations = 999;
// How many of the last days are held against all others: each such look has its share of the chance.
constexpr std::size_t fewest_recent = 2, most_recent = 4;

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

// Consecutive values that count as one observation.
using Blocks = std::vector<std::span<const double>>;

Blocks blocks_of(std::span<const double> values, std::span<const std::size_t> days) {
  Blocks blocks;
  for (std::size_t begin = 0; begin < values.size();) {
    std::size_t end = begin + 1;
    while (!days.empty() && end < values.size() && days[end] == days[begin]) ++end;
    blocks.push_back(values.subspan(begin, end - begin));
    begin = end;
  }
  return blocks;
}

double chance_of(double statistic, std::span<const double> ranks, std::span<const std::size_t> days) {
  Blocks blocks = blocks_of(ranks, days);
  std::mt19937_64 random{1};
  int as_strong = 1;  // the series itself is one of its permutations
  std::vector<double> permuted;
  for (int i = 0; i < permutations; ++i) {
    std::shuffle(blocks.begin(), blocks.end(), random);
    permuted.clear();
    for (const std::span<const double> block : blocks) permuted.insert(permuted.end(), block.begin(), block.end());
    as_strong += strongest_cut(permuted).statistic >= statistic - 1e-9;
  }
  return as_strong / static_cast<double>(permutations + 1);
}

double median_of(std::span<const double> values) { return median_range(values).value; }

bool matters(double before, double after) { return std::abs(after - before) >= smallest_change * std::abs(before); }

std::span<const std::size_t> part(std::span<const std::size_t> days, std::size_t begin, std::size_t count) {
  return days.empty() ? days : days.subspan(begin, count);
}

void search(std::span<const double> values, std::span<const std::size_t> days, std::size_t offset,
            std::vector<SeriesStep>& steps) {
  if (values.size() < fewest_values) return;
  const std::vector<double> ranks = ranks_of(values);
  const Cut cut = strongest_cut(ranks);
  if (cut.at == 0) return;
  const double before = median_of(values.first(cut.at)), after = median_of(values.subspan(cut.at));
  const double p_value = matters(before, after) ? chance_of(cut.statistic, ranks, days) : 1;
  if (p_value > largest_p_value) return;
  search(values.first(cut.at), part(days, 0, cut.at), offset, steps);
  steps.push_back({offset + cut.at, before, after, p_value});
  search(values.subspan(cut.at), part(days, cut.at, values.size() - cut.at), offset + cut.at, steps);
}

// The probability that the last of `count` values are by chance all larger or all smaller than the others.
double chance_of_last(std::size_t last, std::size_t count) {
  double orders = 1;
  for (std::size_t i = 0; i < last; ++i) orders *= static_cast<double>(count - i) / static_cast<double>(i + 1);
  return 2 / orders;
}

struct SeriesPoint : Measurement {
  double value;
};

// Numbers the days; all points are of one machine.
std::vector<std::size_t> days_of(const std::vector<SeriesPoint>& points) {
  constexpr std::size_t date = 10;  // 2026-01-31
  std::vector<std::size_t> days{0};
  for (std::size_t i = 1; i < points.size(); ++i) {
    const bool same = points[i].pair->started_utc.substr(0, date) == points[i - 1].pair->started_utc.substr(0, date);
    days.push_back(days.back() + (same ? 0 : 1));
  }
  return days;
}

void explain(SeriesStep& step, const std::vector<SeriesPoint>& points) {
  const SeriesPoint& before = points[step.at - 1];
  const SeriesPoint& after = points[step.at];
  step.run_id = after.run->manifest.run_id;
  step.source_changed = before.pair->source_digest != after.pair->source_digest;
  step.causes = likely_causes(manifest_of(*before.pair, before.run->manifest), manifest_of(*after.pair, after.run->manifest));
}

using SeriesKey = std::tuple<std::string, std::string, std::string, std::string, SeriesOf>;

void add_points(const RunRecord& run, std::map<SeriesKey, std::vector<SeriesPoint>>& series) {
  for (const PairResult& pair : run.pairs) {
    if (not_recordable(pair)) continue;
    const std::string hardware = hardware_key(pair, run.manifest);
    const std::string machine = machine_in_history(pair, manifest_of(pair, run.manifest));
    for (const VariantResult& variant : pair.variants) {
      if (variant.role != VariantRole::optimized || variant.status != Status::passed || !variant.timing || !variant.speedup)
        continue;
      const auto add = [&](SeriesOf quantity, double value) {
        series[{pair.target, variant.name, hardware, machine, quantity}].push_back({{&run, &pair}, value});
      };
      add(SeriesOf::speedup, variant.speedup->value);
      add(SeriesOf::median_ms, variant.timing->summary.median);
    }
  }
}

}  // namespace

std::vector<SeriesStep> find_steps(std::span<const double> values, std::span<const std::size_t> days) {
  std::vector<SeriesStep> steps;
  search(values, days, 0, steps);
  // Levels between neighbouring steps, now that all of them are known.
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::size_t begin = i == 0 ? 0 : steps[i - 1].at;
    const std::size_t end = i + 1 == steps.size() ? values.size() : steps[i + 1].at;
    steps[i].before = median_of(values.subspan(begin, steps[i].at - begin));
    steps[i].after = median_of(values.subspan(steps[i].at, end - steps[i].at));
  }
  return steps;
}

std::optional<SeriesStep> find_recent(std::span<const double> values, std::span<const std::size_t> days) {
  const Blocks blocks = blocks_of(values, days);
  std::vector<double> levels;  // of the days
  for (const std::span<const double> block : blocks) levels.push_back(median_of(block));
  std::size_t at = values.size();
  for (std::size_t last = 1; last <= most_recent && last < levels.size(); ++last) {
    at -= blocks[blocks.size() - last].size();
    if (last < fewest_recent) continue;
    const std::span<const double> all = levels;
    const auto [least, most] = std::ranges::minmax(all.first(levels.size() - last));
    const auto [least_last, most_last] = std::ranges::minmax(all.last(last));
    const double p_value = (most_recent - fewest_recent + 1) * chance_of_last(last, levels.size());
    const double before = median_of(values.first(at)), after = median_of(values.subspan(at));
    if ((least_last > most || most_last < least) && p_value <= largest_p_value && matters(before, after))
      return SeriesStep{at, before, after, p_value};
  }
  return std::nullopt;
}

std::string machine_in_history(const PairResult& pair, const Manifest& manifest) {
  if (manifest.container.empty()) return manifest.hostname;
  if (!pair.gpus.empty()) return fmt::format("GPU {}", fmt::join(gpu_ids(pair), ", "));
  return "host " + id_of(fingerprint_of(pair, manifest));
}

std::vector<Series> history(const std::vector<RunRecord>& runs) {
  std::map<SeriesKey, std::vector<SeriesPoint>> found;
  for (const RunRecord& run : runs) add_points(run, found);
  std::vector<Series> all;
  for (auto& [key, points] : found) {
    std::stable_sort(points.begin(), points.end(),
                     [](const SeriesPoint& a, const SeriesPoint& b) { return a.pair->started_utc < b.pair->started_utc; });
    Series series;
    std::tie(series.target, series.variant, series.hardware, series.machine, series.quantity) = key;
    for (const SeriesPoint& point : points) {
      series.run_ids.push_back(point.run->manifest.run_id);
      series.values.push_back(point.value);
    }
    const std::vector<std::size_t> days = days_of(points);
    series.days = days.back() + 1;
    series.steps = find_steps(series.values, days);
    for (SeriesStep& step : series.steps) explain(step, points);
    const std::size_t since = series.steps.empty() ? 0 : series.steps.back().at;
    const std::span<const double> values = series.values;
    series.recent = find_recent(values.subspan(since), part(days, since, values.size() - since));
    if (series.recent) {
      series.recent->at += since;
      explain(*series.recent, points);
    }
    all.push_back(std::move(series));
  }
  return all;
}

}  // namespace aisp::evidence
