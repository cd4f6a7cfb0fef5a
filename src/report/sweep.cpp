// SPDX-License-Identifier: Apache-2.0
#include "report/sweep.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.hpp"
#include "report/markdown_table.hpp"
#include "report/numbers.hpp"

namespace aisp::report {
namespace {

using evidence::PairResult;
using evidence::VariantResult;
using evidence::VariantRole;

double median_ms(const VariantResult& variant) { return variant.timing ? variant.timing->summary.median : 0; }

std::string rate_of(const VariantResult& variant) {
  const double seconds = median_ms(variant) / 1e3;
  if (!(seconds > 0)) return "-";
  if (variant.cost.flops > 0 && !variant.cost.math.empty()) return base::human_rate(variant.cost.flops / seconds, "FLOP");
  return variant.cost.bytes > 0 ? base::human_rate(variant.cost.bytes / seconds, "B") : "-";
}

const VariantResult* find(const PairResult& pair, const std::string& name) {
  const auto found = std::find_if(pair.variants.begin(), pair.variants.end(), [&](const auto& v) { return v.name == name; });
  return found == pair.variants.end() ? nullptr : &*found;
}

// How many times as fast as the library, both timed in the same rounds.
std::string against(const PairResult& pair, const VariantResult& variant, const std::string& library) {
  const VariantResult* const other = find(pair, library);
  const bool known = other != nullptr && other != &variant && median_ms(*other) > 0 && median_ms(variant) > 0;
  return known ? base::significant(median_ms(*other) / median_ms(variant)) + "x" : "-";
}

struct Columns {
  std::vector<std::string> libraries;
  bool energy = false;
};

Columns columns_of(const std::vector<const PairResult*>& cases) {
  Columns columns;
  for (const PairResult* pair : cases)
    for (const VariantResult& variant : pair->variants) {
      columns.energy = columns.energy || variant.energy.has_value();
      const bool is_new = std::find(columns.libraries.begin(), columns.libraries.end(), variant.name) == columns.libraries.end();
      if (variant.role == VariantRole::library && is_new) columns.libraries.push_back(variant.name);
    }
  return columns;
}

std::vector<std::string> row_of(const PairResult& pair, const VariantResult& variant, const Columns& columns) {
  const evidence::Speedup* const speedup = claimable(pair, variant);
  const std::string standing = standing_text(pair, variant);
  std::vector<std::string> row{
      pair.sweep_case,      sizes_text(pair), variant.name + (standing.empty() ? "" : " (" + standing + ")"),
      median_text(variant), rate_of(variant), speedup != nullptr ? speedup_text(*speedup) : "-"};
  for (const std::string& library : columns.libraries) row.push_back(against(pair, variant, library));
  if (columns.energy) row.push_back(variant.energy ? joules_text(variant.energy->median_j) : "-");
  return row;
}

Rows rows_of(const std::vector<const PairResult*>& cases) {
  const Columns columns = columns_of(cases);
  Rows rows{{"case", "sizes", "variant", "median", "rate", "speedup"}};
  for (const std::string& library : columns.libraries) rows.front().push_back("of " + library);
  if (columns.energy) rows.front().emplace_back("energy a run");
  for (const PairResult* pair : cases) {
    if (pair->status == evidence::Status::passed)
      for (const VariantResult& variant : pair->variants) rows.push_back(row_of(*pair, variant, columns));
    else {
      rows.push_back({pair->sweep_case, sizes_text(*pair), fmt::format("{}: {}", to_string(pair->status), pair->reason)});
      rows.back().resize(rows.front().size());
    }
  }
  return rows;
}

using Swept = std::vector<std::pair<std::string, std::vector<const PairResult*>>>;

Swept swept_pairs(const std::vector<PairResult>& pairs) {
  Swept swept;
  for (const PairResult& pair : pairs) {
    if (pair.sweep_case.empty()) continue;
    auto found = std::find_if(swept.begin(), swept.end(), [&](const auto& each) { return each.first == pair.target; });
    if (found == swept.end()) found = swept.insert(swept.end(), {pair.target, {}});
    found->second.push_back(&pair);
  }
  return swept;
}

// The first size that differs from case to case; none where only other things do.
std::string changing_size(const std::vector<const PairResult*>& cases) {
  for (const auto& [name, value] : cases.front()->sizes)
    for (const PairResult* pair : cases) {
      const auto other = pair->sizes.find(name);
      if (other != pair->sizes.end() && other->second != value) return name;
    }
  return {};
}

struct Quantity {
  const char *title, *unit;
  double scale;
};

// What all variants of all cases can be drawn by.
Quantity quantity_of(const std::vector<const PairResult*>& cases) {
  bool flops = true, bytes = true;
  for (const PairResult* pair : cases)
    for (const VariantResult& variant : pair->variants) {
      flops = flops && variant.cost.flops > 0 && !variant.cost.math.empty();
      bytes = bytes && variant.cost.bytes > 0;
    }
  if (flops) return {"TFLOP/s", "", 1e-12};
  return bytes ? Quantity{"GB/s", "", 1e-9} : Quantity{"median", " ms", 0};
}

double value_of(const VariantResult& variant, const Quantity& quantity) {
  if (quantity.scale == 0) return median_ms(variant);
  const bool is_flops = quantity.scale < 1e-9;
  return (is_flops ? variant.cost.flops : variant.cost.bytes) / (median_ms(variant) / 1e3) * quantity.scale;
}

LineChart chart_of(const std::string& target, const std::vector<const PairResult*>& cases) {
  const Quantity quantity = quantity_of(cases);
  const std::string size = changing_size(cases);
  LineChart chart{.title = target,
                  .x_title = size.empty() ? "case" : size,
                  .y_title = quantity.title,
                  .logarithmic_x = !size.empty(),
                  .y_unit = quantity.unit};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (size.empty()) chart.x_names.push_back(cases[i]->sweep_case);
    if (cases[i]->status != evidence::Status::passed) continue;
    const auto found = cases[i]->sizes.find(size);
    const double x = found == cases[i]->sizes.end() ? static_cast<double>(i) : static_cast<double>(found->second);
    for (const VariantResult& variant : cases[i]->variants) {
      if (!(median_ms(variant) > 0)) continue;
      auto series = std::find_if(chart.series.begin(), chart.series.end(), [&](const auto& s) { return s.name == variant.name; });
      if (series == chart.series.end()) series = chart.series.insert(series, {variant.name, {}});
      const double y = value_of(variant, quantity);
      series->points.push_back({x, y,
                                fmt::format("{} {}, {}: {} {}", target, cases[i]->sweep_case, variant.name, base::significant(y),
                                            quantity.unit[0] == 0 ? quantity.title : quantity.unit)});
    }
  }
  for (LineSeries& series : chart.series)
    std::sort(series.points.begin(), series.points.end(), [](const auto& a, const auto& b) { return a.x < b.x; });
  return chart;
}

}  // namespace

std::vector<SweepTable> sweep_tables(const std::vector<PairResult>& pairs) {
  std::vector<SweepTable> tables;
  for (const auto& [target, cases] : swept_pairs(pairs)) tables.push_back({target, rows_of(cases)});
  return tables;
}

std::vector<LineChart> sweep_charts(const std::vector<PairResult>& pairs) {
  std::vector<LineChart> charts;
  for (const auto& [target, cases] : swept_pairs(pairs)) {
    LineChart chart = chart_of(target, cases);
    if (!chart.series.empty()) charts.push_back(std::move(chart));
  }
  return charts;
}

std::string sweep_markdown(const evidence::SuiteResult& suite) {
  std::string text;
  for (const SweepTable& sweep : sweep_tables(suite.pairs)) {
    MarkdownTable table{sweep.rows.front()};
    std::for_each(sweep.rows.begin() + 1, sweep.rows.end(), [&](const auto& row) { table.add(row); });
    text += fmt::format("\n## Sweep of {}\n{}", sweep.target, table.text());
  }
  return text;
}

}  // namespace aisp::report
