// SPDX-License-Identifier: Apache-2.0
#include "report/numbers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/text.hpp"
#include "evidence/cost_check.hpp"
#include "evidence/profile/counter_table.hpp"

namespace aisp::report {
namespace {

using evidence::CostPart;
using evidence::CounterKind;
using evidence::CounterRow;
using evidence::Counters;
using Row = std::vector<std::string>;

std::string count(double value) {
  if (value >= 1e6) return base::significant(value / 1e6) + " M";
  return value >= 1e4 ? base::significant(value / 1e3) + " k" : base::significant(value);
}

std::string cell(CounterKind kind, const std::optional<double>& value) {
  if (!value) return "-";
  switch (kind) {
    case CounterKind::microseconds: return base::display_ms(*value * 1e-3);
    case CounterKind::percent: return fmt::format("{:.0f} %", *value);
    case CounterKind::bytes: return base::human_bytes(*value);
    case CounterKind::count: return count(*value);
    case CounterKind::ratio: return base::significant(*value);
  }
  return "-";
}

std::string operations(double value) {
  const std::string rate = base::human_rate(value, "FLOP");
  return rate.ends_with("/s") ? rate.substr(0, rate.size() - 2) : rate;
}

std::string flops(const Counters& counters) {
  std::vector<std::string> parts;
  for (const auto& [type, count] : counters.flops) parts.push_back(fmt::format("{} {}", operations(count), type));
  if (counters.uncounted_instructions_percent) parts.emplace_back("in graphs not counted");
  return parts.empty() ? "-" : base::join(parts, ", ");
}

// Describes what a warp waits for that the counters call `reason`.
std::string words_for(const std::string& reason) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 19> names{{
      {"barrier", "barrier or wgmma"},
      {"branch_resolving", "branch"},
      {"dispatch_stall", "dispatcher"},
      {"drain", "last stores"},
      {"gmma", "wgmma's registers"},
      {"imc_miss", "constants"},
      {"lg_throttle", "queue to global memory"},
      {"long_scoreboard", "global memory"},
      {"math_pipe_throttle", "busy arithmetic unit"},
      {"membar", "memory fence"},
      {"mio_throttle", "queue to shared memory"},
      {"misc", "other"},
      {"no_instruction", "instruction fetch"},
      {"not_selected", "turn of another warp"},
      {"selected", "none, it issues"},
      {"short_scoreboard", "shared memory"},
      {"sleeping", "nanosleep"},
      {"tex_throttle", "queue to textures"},
      {"wait", "instruction before"},
  }};
  const auto found = std::ranges::find(names, reason, [](const auto& name) { return name.first; });
  return found == names.end() ? reason : std::string{found->second};
}

std::string stalls(const Counters& counters) {
  constexpr std::size_t most = 3;
  std::vector<std::string> parts;
  for (const evidence::Stall& stall : counters.stalls) {
    if (parts.size() == most) break;
    parts.push_back(fmt::format("{} {:.0f} %", words_for(stall.reason), stall.percent));
  }
  return parts.empty() ? "-" : base::join(parts, ", ");
}

Row cells(const std::string& name, const Counters& c) {
  Row cells{name};
  for (const CounterRow& row : evidence::counter_rows) cells.push_back(cell(row.kind, c.*row.value));
  cells.insert(cells.end(), {flops(c), stalls(c)});
  return cells;
}

Row headings() {
  Row cells{"variant"};
  for (const CounterRow& row : evidence::counter_rows) cells.emplace_back(row.heading);
  cells.insert(cells.end(), {"FLOPs", "warps wait for"});
  return cells;
}

std::string difference(const std::optional<CostPart>& part) {
  return part ? fmt::format("{:+.1f} %", (part->ratio() - 1) * 100) : "-";
}

Row cost_cells(const evidence::PairResult& pair) {
  const evidence::CostCheck check = evidence::check_cost(pair);
  const auto faults = check.faults();
  // The nearest variant may be one for both parts, or two.
  std::string variant = check.bytes ? check.bytes->variant : check.flops ? check.flops->variant : "-";
  if (check.bytes && check.flops && check.flops->variant != variant) variant += ", " + check.flops->variant;
  return {label_in_run(pair),
          variant,
          check.bytes ? base::human_bytes(check.bytes->declared) : "-",
          check.bytes ? base::human_bytes(check.bytes->measured) : "-",
          difference(check.bytes),
          check.flops ? operations(check.flops->declared) : "-",
          check.flops ? operations(check.flops->measured) : "-",
          difference(check.flops),
          !faults.empty()              ? "off"
          : check.not_compared.empty() ? "ok"
                                       : "not compared: " + check.not_compared};
}

}  // namespace

Rows counters_table(const evidence::PairResult& pair) {
  Rows rows;
  for (const evidence::VariantResult& variant : pair.variants)
    if (variant.counters) rows.push_back(cells(variant.name, *variant.counters));
  if (!rows.empty()) rows.insert(rows.begin(), headings());
  return rows;
}

Rows cost_table(const evidence::SuiteResult& suite) {
  Rows rows{
      {"pair", "nearest variant", "bytes declared", "measured", "off by", "FLOPs declared", "executed", "off by", "verdict"}};
  for (const evidence::PairResult& pair : suite.pairs) rows.push_back(cost_cells(pair));
  return rows;
}

}  // namespace aisp::report
