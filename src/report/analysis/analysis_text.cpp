// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <optional>

#include "base/text.hpp"
#include "report/analysis/analysis.hpp"
#include "report/numbers.hpp"

namespace aisp::report {
namespace {

using evidence::AnalysisRow;
using evidence::Finding;

std::string range_text(const std::optional<evidence::Range>& range) {
  return range ? speedup_text({.value = range->value, .low = range->low, .high = range->high}) : "-";
}

std::string change_text(const AnalysisRow& row) {
  if (!row.speedup || !row.expected) return "-";
  const double percent = evidence::change_percent(row.expected->value, row.speedup->value);
  return std::isfinite(percent) ? fmt::format("{:+.1f} %", percent) : "-";
}

base::Style style_of(const AnalysisRow& row) {
  switch (row.finding) {
    case Finding::failed:
    case Finding::missing:
    case Finding::regressed: return base::Style::red;
    case Finding::slower:
    case Finding::drifted:
    case Finding::rebased:
    case Finding::stale: return is_regressed(row) ? base::Style::red : base::Style::yellow;
    case Finding::improved:
    case Finding::ok: return base::Style::green;
    default: return base::Style::dim;
  }
}

// With what tells it from others, where runs of several machines are looked at.
std::string hardware_text(const AnalysisRow& row, bool several_machines) {
  if (row.hardware.empty()) return "-";
  return several_machines && !row.machine.empty() ? fmt::format("{} ({})", row.hardware, row.machine) : row.hardware;
}

constexpr std::size_t many_rows = 3;

// A finding with its detail, and how many rows say so.
using SaidByMany = std::map<std::pair<Finding, std::string>, std::size_t>;

// Collects remarks that many rows share, such as a machine where nothing was recorded, to stand once below the table.
SaidByMany said_by_many(const evidence::Analysis& analysis) {
  SaidByMany said;
  for (const AnalysisRow& row : analysis.rows)
    if (!row.detail.empty()) ++said[{row.finding, row.detail}];
  std::erase_if(said, [](const auto& one) { return one.second < many_rows; });
  return said;
}

}  // namespace

std::vector<std::vector<std::string>> analysis_rows(const evidence::Analysis& analysis, const base::Painter& paint) {
  std::vector<std::vector<std::string>> rows{{"pair", "variant", "hardware", "measured", "expected", "change", "finding"}};
  std::map<std::string, std::string> machines;  // one for each kind of hardware where there are no several
  bool several_machines = false;
  const SaidByMany below = said_by_many(analysis);
  for (const AnalysisRow& row : analysis.rows)
    if (!row.machine.empty())
      several_machines = several_machines || machines.emplace(row.hardware, row.machine).first->second != row.machine;
  for (const AnalysisRow& row : analysis.rows) {
    std::string finding{to_string(row.finding)};
    if (row.confirmed) finding += " (confirmed)";
    finding = paint(style_of(row), finding);
    if (!row.detail.empty() && !below.contains({row.finding, row.detail})) finding += ": " + row.detail;
    rows.push_back({row.target, row.variant.empty() ? "-" : row.variant, hardware_text(row, several_machines),
                    range_text(row.speedup), range_text(row.expected), change_text(row), finding});
  }
  return rows;
}

std::string analysis_reasons(const evidence::Analysis& analysis) {
  std::string text;
  for (const auto& [said, count] : said_by_many(analysis))
    text += fmt::format("{} in {} rows: {}\n", to_string(said.first), count, base::one_line(said.second));
  return text;
}

std::string analysis_summary(const evidence::Analysis& analysis) {
  std::map<Finding, std::size_t> counts;
  std::size_t confirmed = 0, compared = 0;
  for (const AnalysisRow& row : analysis.rows) {
    ++counts[row.finding];
    confirmed += row.confirmed ? 1 : 0;
    compared += evidence::was_compared(row) ? 1 : 0;
  }
  std::vector<std::string> parts;
  for (const auto& [finding, count] : counts) {
    const std::string note = finding == Finding::regressed ? fmt::format(" ({} confirmed)", confirmed) : std::string{};
    parts.push_back(fmt::format("{} {}{}", count, to_string(finding), note));
  }
  return fmt::format("{}: {}; {} compared with an expectation\n", base::plural(analysis.rows.size(), "row"),
                     parts.empty() ? "nothing" : base::join(parts, ", "), compared);
}

}  // namespace aisp::report
