// SPDX-License-Identifier: Apache-2.0
#include "profile/tools.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "base/text.hpp"

namespace aisp::profile {
namespace {

using Row = std::vector<std::string>;

// Fields of the lines that begin with a quotation mark; a line whose quotation is not closed is cut off.
std::optional<Row> parse_row(std::string_view line) {
  Row row;
  std::size_t at = 0;
  while (true) {
    if (at >= line.size() || line[at] != '"') return std::nullopt;
    std::string field;
    for (++at;; ++at) {
      if (at >= line.size()) return std::nullopt;
      if (line[at] != '"') field += line[at];
      else if (at + 1 < line.size() && line[at + 1] == '"') field += line[++at];
      else break;
    }
    row.push_back(std::move(field));
    if (++at >= line.size()) return row;
    if (line[at++] != ',') return std::nullopt;
  }
}

std::vector<Row> parse_rows(std::string_view text) {
  std::vector<Row> rows;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (auto row = parse_row(line)) rows.push_back(std::move(*row));
  }
  return rows;
}

// "1,234.5"; nothing for "n/a" and the like.
std::optional<double> number(std::string text) {
  std::erase(text, ',');
  const std::optional<double> value = base::parse_number<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

// Returns the factor for a value in `unit`; nothing when the unit is none that the metrics have.
std::optional<double> factor(std::string_view unit) {
  constexpr std::array<std::pair<std::string_view, double>, 26> units{{
      {"", 1},         {"%", 1},       {"byte", 1},   {"Kbyte", 1e3},   {"Mbyte", 1e6}, {"Gbyte", 1e9},   {"Tbyte", 1e12},
      {"ns", 1},       {"nsecond", 1}, {"us", 1e3},   {"usecond", 1e3}, {"ms", 1e6},    {"msecond", 1e6}, {"s", 1e9},
      {"second", 1e9}, {"inst", 1},    {"sector", 1}, {"cycle", 1},     {"warp", 1},    {"request", 1},   {"sector/request", 1},
      {"thread", 1},   {"K", 1e3},     {"M", 1e6},    {"G", 1e9},       {"pass", 1},
  }};
  const auto found = std::ranges::find(units, unit, [](const auto& known) { return known.first; });
  if (found != units.end()) return found->second;
  return std::nullopt;
}

bool is_metric(std::string_view column) { return column.find("__") != std::string_view::npos; }

bool adds_up(std::string_view metric) { return metric.ends_with(".sum"); }

}  // namespace

NcuReport parse_ncu_csv(std::string_view text) {
  NcuReport report;
  const std::vector<Row> rows = parse_rows(text);
  const auto header = std::ranges::find_if(
      rows, [](const Row& row) { return row.front() == "ID" && std::ranges::find(row, "Kernel Name") != row.end(); });
  // Behind the names come the units, and then a row a kernel.
  if (header == rows.end() || rows.end() - header < 2) return report;
  const Row& columns = *header;
  const Row& units = header[1];
  if (units.size() != columns.size()) return report;
  const std::size_t name = static_cast<std::size_t>(std::ranges::find(columns, "Kernel Name") - columns.begin());
  for (auto row = header + 2; row != rows.end(); ++row) {
    if (row->size() != columns.size()) continue;
    report.kernels.push_back((*row)[name]);
    std::map<std::string, double>& values = report.values.emplace_back();
    for (std::size_t i = 0; i < columns.size(); ++i) {
      if (!is_metric(columns[i])) continue;
      const std::optional<double> value = number((*row)[i]), unit = factor(units[i]);
      if (value && unit) values[columns[i]] = *value * *unit;
    }
  }
  return report;
}

std::map<std::string, double> combined(const NcuReport& report) {
  std::map<std::string, double> sums, weights;
  for (const auto& values : report.values) {
    const auto duration = values.find("gpu__time_duration.sum");
    const double weight = duration != values.end() && duration->second > 0 ? duration->second : 1;
    for (const auto& [metric, value] : values) {
      const double part = adds_up(metric) ? 1 : weight;
      sums[metric] += value * part;
      weights[metric] += part;
    }
  }
  for (auto& [metric, sum] : sums)
    if (!adds_up(metric)) sum /= weights[metric];
  return sums;
}

}  // namespace aisp::profile
