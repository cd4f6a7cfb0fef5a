// SPDX-License-Identifier: Apache-2.0
#include "peak/levels/levels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "machine/chips.hpp"
#include "machine/cpu_caches.hpp"
#include "machine/gpu_specs.hpp"
#include "machine/host.hpp"

namespace aisp::peak {
namespace {

using nlohmann::json;
using Row = std::vector<std::string>;

std::string cycles_text(double cycles) { return cycles > 0 ? base::significant(cycles) : "-"; }
std::string ns_text(double ns) { return ns > 0 ? base::significant(ns) + " ns" : "-"; }
std::string rate_text(double bytes_s) { return bytes_s > 0 ? base::human_rate(bytes_s, "B") : "-"; }

Row row_of(const char* name, const ChasePoint& point, const char* holds) {
  return {
      name, base::human_bytes(point.bytes) + holds, "-", ns_text(point.ns), cycles_text(point.cycles), rate_text(point.bytes_s)};
}

std::string holds_text(const MemoryLevel& level) {
  return level.beyond_bytes > 0
             ? fmt::format("{} (not {})", base::human_bytes(level.held_bytes), base::human_bytes(level.beyond_bytes))
             : fmt::format("tried up to {}", base::human_bytes(level.held_bytes));
}

Row row_of(const MemoryLevel& level, const std::string& name, const std::vector<Stated>& stated) {
  const Stated* const by = stated_of(level, stated);
  return {
      name,
      holds_text(level),
      by == nullptr ? "-" : fmt::format("{}{} ({})", base::human_bytes(by->bytes), machine::mark(!by->doubt.empty()), by->source),
      ns_text(level.ns),
      cycles_text(level.cycles),
      rate_text(level.bytes_s)};
}

void add_halves(const MemoryLevels& levels, std::vector<Row>& rows) {
  if (!levels.l2) return;
  const auto share = [](double part) { return fmt::format("{:.0f} % of its lines", part * 100); };
  rows.push_back({"  L2, near half", share(1 - levels.l2->far_share), "-", "-", cycles_text(levels.l2->near), "-"});
  rows.push_back({"  L2, far half", share(levels.l2->far_share), "-", "-", cycles_text(levels.l2->far), "-"});
}

json level_json(const MemoryLevel& level, const std::vector<Stated>& stated) {
  const Stated* const by = stated_of(level, stated);
  return {{"name", level.name},
          {"latency_ns", level.ns},
          {"latency_cycles", level.cycles},
          {"bytes_s", level.bytes_s},
          {"held_bytes", level.held_bytes},
          {"beyond_bytes", level.beyond_bytes},
          {"stated_bytes", by == nullptr ? json(nullptr) : json(by->bytes)},
          {"source", by == nullptr ? "" : by->source},
          {"doubt", by == nullptr ? "" : by->doubt}};
}

json levels_json(const std::vector<MemoryLevel>& levels, const std::vector<Stated>& stated) {
  json list = json::array();
  for (const MemoryLevel& level : levels) list.push_back(level_json(level, stated));
  return list;
}

}  // namespace

LevelsFound found_in(const MemoryLevels& levels, std::vector<Stated> stated) {
  LevelsFound found{find_levels(levels.lines), find_levels(levels.pages), std::move(stated)};
  name_levels(found.memory, found.stated, levels.registers ? "HBM" : "DRAM");
  return found;
}

std::vector<Stated> stated_sizes(const machine::Gpu& gpu) {
  std::vector<Stated> stated;
  if (const int kib = machine::chip_of(gpu.sm).unified_kib; kib > 0)
    stated.push_back({"L1", kib * 1024.0, "programming guide, with shared memory"});
  const machine::GpuSpec* const spec = gpu.mig ? nullptr : machine::spec_of_reported(gpu.name);
  // The driver knows better than a doubtful sheet.
  if (spec != nullptr && spec->l2_bytes.known() && (!spec->l2_bytes.doubtful() || gpu.l2_bytes == 0))
    stated.push_back({"L2", spec->l2_bytes.value, machine::citation(spec->l2_bytes), std::string{spec->l2_bytes.doubt}});
  else if (gpu.l2_bytes > 0) stated.push_back({"L2", static_cast<double>(gpu.l2_bytes), "the driver"});
  return stated;
}

std::vector<Stated> stated_sizes_of_host() {
  std::vector<Stated> stated;
  for (const machine::CpuCache& cache : machine::read_cpu_caches())
    if (cache.type != "Instruction" && cache.bytes > 0)
      stated.push_back({"L" + std::to_string(cache.level), static_cast<double>(cache.bytes), "the system"});
  return stated;
}

std::vector<Row> level_rows(const MemoryLevels& levels, const LevelsFound& found) {
  std::vector<Row> rows{{"level", "holds", "stated", "latency", "cycles", "bandwidth"}};
  if (levels.registers) rows.push_back(row_of("registers", *levels.registers, " an SM"));
  if (levels.shared) rows.push_back(row_of("shared memory", *levels.shared, " an SM at most"));
  bool halves_are_there = false;
  for (const MemoryLevel& level : found.memory) {
    rows.push_back(row_of(level, level.name.empty() ? "a further step" : level.name, found.stated));
    if (level.name == "L2") {
      add_halves(levels, rows);
      halves_are_there = true;
    }
  }
  if (!halves_are_there) add_halves(levels, rows);
  for (std::size_t i = 0; i < found.translation.size(); ++i) {
    const bool last = found.translation[i].beyond_bytes == 0;
    const std::string name = last && i > 0 ? "beyond the TLBs" : fmt::format("TLB reach {}", i + 1);
    rows.push_back(row_of(found.translation[i], name, {}));
  }
  // For the host neither is measured.
  for (std::ptrdiff_t column = 5; column > 3; --column) {
    const auto says = [&](const Row& row) { return row[static_cast<std::size_t>(column)] != "-"; };
    if (std::any_of(rows.begin() + 1, rows.end(), says)) continue;
    for (Row& row : rows) row.erase(row.begin() + column);
  }
  return rows;
}

std::vector<std::string> level_notes(const MemoryLevels& levels, const LevelsFound& found) {
  std::vector<std::string> notes;
  for (const Stated& each : found.stated) {
    if (!each.doubt.empty()) notes.push_back(fmt::format("doubtful data sheet (?): {}: {}", each.name, each.doubt));
    if (std::ranges::find(found.memory, each.name, &MemoryLevel::name) == found.memory.end())
      notes.push_back(
          fmt::format("{}: no step near the {} that are stated ({})", each.name, base::human_bytes(each.bytes), each.source));
  }
  if (!levels.pages.empty() && found.translation.size() < 2)
    notes.push_back(fmt::format("TLB: no step up to {}, with one line of each {}", base::human_bytes(levels.pages.back().bytes),
                                base::human_bytes(levels.page_bytes)));
  return notes;
}

void add_levels(json& record, const LevelsFound& found) {
  record["levels"] = levels_json(found.memory, found.stated);
  record["translation"] = levels_json(found.translation, {});
}

}  // namespace aisp::peak
