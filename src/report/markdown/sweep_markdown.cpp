// SPDX-License-Identifier: Apache-2.0

#include <fmt/format.h>

#include <algorithm>

#include "base/text.hpp"
#include "report/markdown/markdown.hpp"
#include "report/numbers.hpp"
#include "report/pictures/sweep_picture.hpp"

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

}  // namespace

std::vector<SweepTable> sweep_tables(const std::vector<PairResult>& pairs) {
  std::vector<SweepTable> tables;
  for (const auto& [target, cases] : swept_pairs(pairs)) tables.push_back({target, rows_of(cases)});
  return tables;
}

std::vector<SweepTable> sweep_summaries(const std::vector<PairResult>& pairs) {
  std::vector<SweepTable> tables;
  for (const evidence::Sweep& sweep : evidence::sweeps_of(pairs)) tables.push_back({sweep.target, sweep_summary(sweep)});
  return tables;
}

std::string sweep_markdown(const evidence::SuiteResult& suite) {
  std::string text;
  const std::vector<SweepTable> summaries = sweep_summaries(suite.pairs), tables = sweep_tables(suite.pairs);
  for (std::size_t i = 0; i < tables.size(); ++i)
    text += fmt::format("\n## Sweep of {}\n{}{}", tables[i].target, markdown_table(summaries[i].rows),
                        markdown_table(tables[i].rows));
  return text;
}

}  // namespace aisp::report
