// SPDX-License-Identifier: Apache-2.0
#include "peak/levels/levels.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "machine/chips.hpp"
#include "machine/gpu_specs.hpp"
#include "machine/host.hpp"
#include "machine/topology/topology.hpp"

namespace aisp::peak {
namespace {

using nlohmann::json;

constexpr std::size_t most_points = 4096;

double amount(const json& object, const char* name) {
  const double value = object.at(name).get<double>();
  if (!std::isfinite(value) || value < 0) throw std::invalid_argument{std::string{name} + " is no amount"};
  return value;
}

json level_json(const Level& level, const std::vector<Stated>& stated) {
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

json levels_json(const std::vector<Level>& levels, const std::vector<Stated>& stated) {
  json list = json::array();
  for (const Level& level : levels) list.push_back(level_json(level, stated));
  return list;
}

std::vector<ChasePoint> points_from(const json& list) {
  std::vector<ChasePoint> points = list.get<std::vector<ChasePoint>>();
  if (points.size() > most_points) throw std::invalid_argument{"it has too many points"};
  if (!std::ranges::is_sorted(points, {}, &ChasePoint::bytes)) throw std::invalid_argument{"its points are in no order"};
  return points;
}

}  // namespace

void to_json(json& object, const ChasePoint& point) {
  object = {{"bytes", point.bytes}, {"latency_ns", point.ns}, {"latency_cycles", point.cycles}, {"bytes_s", point.bytes_s}};
}

void from_json(const json& object, ChasePoint& point) {
  point = {amount(object, "bytes"), amount(object, "latency_ns"), amount(object, "latency_cycles"), amount(object, "bytes_s")};
}

void to_json(json& object, const Levels& levels) {
  object = {{"schema_version", 1},   {"key", levels.key},     {"measured_utc", levels.measured_utc},
            {"lines", levels.lines}, {"pages", levels.pages}, {"page_bytes", levels.page_bytes}};
  if (levels.registers) object["registers"] = *levels.registers;
  if (levels.shared) object["shared"] = *levels.shared;
  if (levels.l2)
    object["l2"] = {{"near_cycles", levels.l2->near}, {"far_cycles", levels.l2->far}, {"far_share", levels.l2->far_share}};
}

void from_json(const json& object, Levels& levels) {
  if (object.at("schema_version") != 1) throw std::invalid_argument{"it is of another version of aisp"};
  object.at("key").get_to(levels.key);
  object.at("measured_utc").get_to(levels.measured_utc);
  levels.lines = points_from(object.at("lines"));
  levels.pages = points_from(object.at("pages"));
  levels.page_bytes = amount(object, "page_bytes");
  if (object.contains("registers")) levels.registers = object.at("registers").get<ChasePoint>();
  if (object.contains("shared")) levels.shared = object.at("shared").get<ChasePoint>();
  if (!object.contains("l2")) return;
  const json& l2 = object.at("l2");
  levels.l2 = TwoKinds{amount(l2, "near_cycles"), amount(l2, "far_cycles"), amount(l2, "far_share")};
}

LevelsFound found_in(const Levels& levels, std::vector<Stated> stated) {
  LevelsFound found{find_levels(levels.lines), find_levels(levels.pages), std::move(stated)};
  name_levels(found.memory, found.stated, levels.key.of == "host" ? "DRAM" : "HBM");
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
  for (const machine::CpuCache& cache : machine::read_host_topology(machine::read_host(), {}).caches)
    if (cache.type != "Instruction" && cache.bytes > 0)
      stated.push_back({"L" + std::to_string(cache.level), static_cast<double>(cache.bytes), "the system"});
  return stated;
}

json with_levels(const Levels& levels, const LevelsFound& found) {
  json object = levels;
  object.erase("schema_version");
  object["levels"] = levels_json(found.memory, found.stated);
  object["translation"] = levels_json(found.translation, {});
  return object;
}

}  // namespace aisp::peak
