// SPDX-License-Identifier: Apache-2.0
#include "peak/figures.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "peak/amounts.hpp"

namespace aisp::peak {
namespace {

using nlohmann::json;

constexpr Unit bytes = Unit::bytes_per_second, flop = Unit::flop_per_second, time = Unit::seconds;

constexpr std::array figures = {
    Known{figure_id::hbm_read, "HBM read", bytes},
    Known{figure_id::hbm_write, "HBM write", bytes},
    Known{figure_id::hbm_copy, "HBM copy", bytes},
    Known{figure_id::hbm_triad, "HBM triad", bytes},
    Known{figure_id::l2_read, "L2 read", bytes},
    Known{figure_id::shared_read, "shared memory read", bytes},
    Known{"fp64", "FP64", flop},
    Known{"fp64_tensor", "FP64 tensor", flop},
    Known{"fp32", "FP32", flop},
    Known{"tf32", "TF32", flop},
    Known{"bf16", "BF16", flop},
    Known{"fp16", "FP16", flop},
    Known{"fp8", "FP8", flop},
    Known{"int8", "INT8", flop},
    Known{figure_id::host_to_device, "host to device", bytes},
    Known{figure_id::device_to_host, "device to host", bytes},
    Known{figure_id::both_directions, "both at once", bytes},
    Known{figure_id::peer_copy, "peer copy engine", bytes},
    Known{figure_id::peer_pull, "peer pull by SMs", bytes},
    Known{figure_id::all_reduce, "NCCL all-reduce bus", bytes},
    Known{figure_id::kernel_launch, "kernel launch", time},
    Known{figure_id::graph_launch, "graph launch", time},
    Known{figure_id::event_record, "event record", time},
    Known{figure_id::synchronize, "launch and synchronize", time},
    Known{figure_id::empty_kernel, "empty kernel", time},
    Known{figure_id::graph_node, "kernel after kernel in a graph", time},
    Known{figure_id::host_read, "host memory read", bytes, true},
    Known{figure_id::host_write, "host memory write", bytes, true},
    Known{figure_id::host_copy, "host memory copy", bytes, true},
};

}  // namespace

std::string_view name_of(Unit unit) {
  constexpr std::array<std::string_view, 3> names = {"B/s", "FLOP/s", "s"};
  return names.at(static_cast<std::size_t>(unit));
}

std::span<const Known> known_figures() { return figures; }

const Known* find_known(std::string_view id) {
  const auto found = std::find_if(figures.begin(), figures.end(), [&](const Known& known) { return known.id == id; });
  return found == figures.end() ? nullptr : &*found;
}

Key key_of(const machine::Gpu& gpu, const std::string& driver) {
  const double limit_w = gpu.condition ? gpu.condition->power_limit_w.value_or(0) : 0;
  return {.of = gpu.uuid, .model = gpu.name, .driver = driver, .power_limit_w = limit_w};
}

Key key_of(const machine::Host& host) { return {.of = std::string{key_of_host}, .model = host.cpu, .cpus = host.cpus_usable}; }

const Figure* Record::find(std::string_view id) const {
  for (const Figure& figure : figures)
    if (figure.id == id && figure.measured()) return &figure;
  return nullptr;
}

template <class Visitor>
static void describe(Sustained& s, Visitor& visit) {
  visit("value", s.value);
  visit("duration_s", s.duration_s);
  visit("sm_clock_mhz", s.sm_clock_mhz);
  visit("power_w", s.power_w);
  visit("throttle_reasons", s.throttle_reasons);
}

template <class Visitor>
static void describe(Figure& f, Visitor& visit) {
  visit("id", f.id);
  visit("value", f.value);
  visit("how", f.how);
  visit("why_not", f.why_not);
  visit("sustained", f.sustained);
}

template <class Visitor>
static void describe(Key& k, Visitor& visit) {
  visit("of", k.of);
  visit("model", k.model);
  visit("driver", k.driver);
  visit("power_limit_w", k.power_limit_w);
  visit("cpus", k.cpus);
}

template <class Visitor>
static void describe(Record& r, Visitor& visit) {
  visit("key", r.key);
  visit("measured_utc", r.measured_utc);
  visit("quick", r.quick);
  visit("partial", r.partial);
  visit("figures", r.figures);
}

static void read_field(const json& from, Sustained& value, const std::string& place) { read_amounts(from, value, place); }
void read_field(const json& from, Figure& value, const std::string& place) { read_amounts(from, value, place); }
void read_field(const json& from, Key& value, const std::string& place) { read_amounts(from, value, place); }

// Readers know the unit by the id; scripts need not.
void to_json(json& object, const Figure& figure) {
  object = base::json_of(figure);
  if (const Known* known = find_known(figure.id)) object["unit"] = name_of(known->unit);
}
void from_json(const json& object, Figure& figure) { read_field(object, figure, "figure"); }

void to_json(json& object, const Key& key) { object = base::json_of(key); }
void from_json(const json& object, Key& key) { read_field(object, key, "key"); }

void to_json(json& object, const Record& record) {
  object = base::json_of(record);
  object["schema_version"] = record_version;
}
void from_json(const json& object, Record& record) {
  demand_record_version(object);
  base::JsonReader reader{object, "record"};
  describe(record, reader);
}

void demand_record_version(const json& object) {
  int version = 0;
  base::JsonReader{object, "record"}("schema_version", version);
  if (version != record_version) throw base::Error{base::Exit::usage, "it is of another version of aisp"};
}

}  // namespace aisp::peak
