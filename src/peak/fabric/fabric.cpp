// SPDX-License-Identifier: Apache-2.0
#include "peak/fabric/fabric.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "peak/amounts.hpp"

namespace aisp::peak {

using nlohmann::json;

constexpr base::Words<collectives> words_of(Collective /*any*/) {
  return {{"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}};
}

std::string_view name_of(Collective operation) { return base::word_for(operation); }

// Each rank's data pass its link so often, at least: a sum takes n - 1 additions and n assignments of every element, of which
// all but one cross a link, spread over n links.
double bus_factor(Collective operation, std::size_t ranks) {
  const auto n = static_cast<double>(ranks);
  return (operation == Collective::all_reduce ? 2 : 1) * (n - 1) / n;
}

double CollectiveTime::bus_bytes_s(std::size_t ranks) const { return algorithm_bytes_s() * bus_factor(operation, ranks); }

const Figure* FabricGpu::find(std::string_view id) const {
  const auto found = std::ranges::find_if(figures, [&](const Figure& f) { return f.id == id && f.measured(); });
  return found == figures.end() ? nullptr : &*found;
}

const FabricPair* Fabric::find(int from, int to) const {
  const auto found = std::ranges::find_if(pairs, [&](const FabricPair& p) { return p.from == from && p.to == to; });
  return found == pairs.end() ? nullptr : &*found;
}

Key fabric_key(const machine::Machine& machine, const std::vector<int>& ordinals) {
  std::vector<std::string> uuids;
  for (const int ordinal : ordinals) uuids.push_back(machine.gpus.at(static_cast<std::size_t>(ordinal)).uuid);
  Key key = key_of(machine.gpus.at(static_cast<std::size_t>(ordinals.at(0))), machine.driver_version);
  key.of = base::join(uuids, ",");
  return key;
}

template <class Visitor>
static void describe(FabricGpu& g, Visitor& visit) {
  visit("ordinal", g.ordinal);
  visit("uuid", g.uuid);
  visit("name", g.name);
  visit("figures", g.figures);
}

template <class Visitor>
static void describe(FabricPair& p, Visitor& visit) {
  visit("from_gpu", p.from);
  visit("to_gpu", p.to);
  visit("path", p.path);
  visit("direct", p.direct);
  visit("bytes_s", p.bytes_s);
  visit("both_bytes_s", p.both_bytes_s);
  visit("latency_s", p.latency_s);
}

template <class Visitor>
static void describe(CollectiveTime& c, Visitor& visit) {
  visit("operation", c.operation);
  visit("bytes", c.bytes);
  visit("time_s", c.seconds);
  visit("wrong", c.wrong);
}

template <class Visitor>
static void describe(Fabric& f, Visitor& visit) {
  visit("key", f.key);
  visit("measured_utc", f.measured_utc);
  visit("gpus", f.gpus);
  visit("pairs", f.pairs);
  visit("nccl", f.nccl);
  visit("times", f.times);
  visit("missing", f.missing);
}

static void read_field(const json& from, FabricPair& value, const std::string& place) { read_amounts(from, value, place); }
static void read_field(const json& from, CollectiveTime& value, const std::string& place) {
  read_amounts(from, value, place);
  if (!(value.bytes > 0 && value.seconds > 0))
    throw base::Error{base::Exit::usage, place + ": a collective takes bytes and seconds"};
}

void to_json(json& object, const Fabric& fabric) {
  object = base::json_of(fabric);
  object["schema_version"] = record_version;
  for (std::size_t i = 0; i < fabric.times.size(); ++i) {
    object["times"][i]["algorithm_bytes_s"] = fabric.times[i].algorithm_bytes_s();
    object["times"][i]["bus_bytes_s"] = fabric.times[i].bus_bytes_s(fabric.gpus.size());
  }
}

void from_json(const json& object, Fabric& fabric) {
  demand_record_version(object);
  read_amounts(object, fabric, "links");
}

}  // namespace aisp::peak
