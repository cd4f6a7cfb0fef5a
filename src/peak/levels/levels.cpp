// SPDX-License-Identifier: Apache-2.0
#include "peak/levels/levels.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "machine/chips.hpp"
#include "machine/cpu_caches.hpp"
#include "machine/gpu_specs.hpp"
#include "machine/host.hpp"
#include "peak/amounts.hpp"

namespace aisp::peak {
namespace {

using nlohmann::json;

constexpr std::size_t most_points = 4096;

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

void demand_points(const std::vector<ChasePoint>& points, const std::string& place) {
  const auto refuse = [&](const char* what) { throw base::Error{base::Exit::usage, fmt::format("{}: {}", place, what)}; };
  if (points.size() > most_points) refuse("too many points");
  if (!std::ranges::is_sorted(points, {}, &ChasePoint::bytes)) refuse("its points are in no order");
}

}  // namespace

template <class Visitor>
static void describe(ChasePoint& p, Visitor& visit) {
  visit("bytes", p.bytes);
  visit("latency_ns", p.ns);
  visit("latency_cycles", p.cycles);
  visit("bytes_s", p.bytes_s);
}

template <class Visitor>
static void describe(TwoKinds& k, Visitor& visit) {
  visit("near_cycles", k.near);
  visit("far_cycles", k.far);
  visit("far_share", k.far_share);
}

template <class Visitor>
static void describe(Levels& l, Visitor& visit) {
  visit("key", l.key);
  visit("measured_utc", l.measured_utc);
  visit("lines", l.lines);
  visit("pages", l.pages);
  visit("page_bytes", l.page_bytes);
  visit("registers", l.registers);
  visit("shared", l.shared);
  visit("l2", l.l2);
}

static void read_field(const json& from, ChasePoint& value, const std::string& place) { read_amounts(from, value, place); }
static void read_field(const json& from, TwoKinds& value, const std::string& place) { read_amounts(from, value, place); }

void to_json(json& object, const Levels& levels) {
  object = base::json_of(levels);
  object["schema_version"] = record_version;
}

void from_json(const json& object, Levels& levels) {
  demand_record_version(object);
  read_amounts(object, levels, "levels");
  demand_points(levels.lines, "levels.lines");
  demand_points(levels.pages, "levels.pages");
}

LevelsFound found_in(const Levels& levels, std::vector<Stated> stated) {
  LevelsFound found{find_levels(levels.lines), find_levels(levels.pages), std::move(stated)};
  name_levels(found.memory, found.stated, levels.key.of == key_of_host ? "DRAM" : "HBM");
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

json with_levels(const Levels& levels, const LevelsFound& found) {
  json object = levels;
  object.erase("schema_version");
  object["levels"] = levels_json(found.memory, found.stated);
  object["translation"] = levels_json(found.translation, {});
  return object;
}

}  // namespace aisp::peak
