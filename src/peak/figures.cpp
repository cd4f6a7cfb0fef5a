// SPDX-License-Identifier: Apache-2.0
#include "peak/figures.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/json_integer.hpp"

namespace aisp::peak {
namespace {

using nlohmann::json;

constexpr Unit bytes = Unit::bytes_per_second, flop = Unit::flop_per_second, time = Unit::seconds;

constexpr std::array figures = {
    Known{"hbm_read", "HBM read", bytes},
    Known{"hbm_write", "HBM write", bytes},
    Known{"hbm_copy", "HBM copy", bytes},
    Known{"hbm_triad", "HBM triad", bytes},
    Known{"l2_read", "L2 read", bytes},
    Known{"shared_read", "shared memory read", bytes},
    Known{"fp64", "FP64", flop},
    Known{"fp64_tensor", "FP64 tensor", flop},
    Known{"fp32", "FP32", flop},
    Known{"tf32", "TF32", flop},
    Known{"bf16", "BF16", flop},
    Known{"fp16", "FP16", flop},
    Known{"fp8", "FP8", flop},
    Known{"int8", "INT8", flop},
    Known{"host_to_device", "host to device", bytes},
    Known{"device_to_host", "device to host", bytes},
    Known{"both_directions", "both at once", bytes},
    Known{"peer_copy", "peer copy engine", bytes},
    Known{"peer_pull", "peer pull by SMs", bytes},
    Known{"all_reduce", "NCCL all-reduce bus", bytes},
    Known{"kernel_launch", "kernel launch", time},
    Known{"graph_launch", "graph launch", time},
    Known{"event_record", "event record", time},
    Known{"synchronize", "launch and synchronize", time},
    Known{"empty_kernel", "empty kernel", time},
    Known{"graph_node", "kernel after kernel in a graph", time},
    Known{"host_read", "host memory read", bytes, true},
    Known{"host_write", "host memory write", bytes, true},
    Known{"host_copy", "host memory copy", bytes, true},
};

double amount(const json& object, const char* name) {
  const double value = object.at(name).get<double>();
  if (!std::isfinite(value) || value < 0) throw std::invalid_argument{std::string{name} + " is no amount"};
  return value;
}

Sustained sustained_from(const json& object) {
  return {amount(object, "value"), amount(object, "duration_s"),
          base::json_integer<int>(object.at("sm_clock_mhz"), "sm_clock_mhz"), amount(object, "power_w"),
          base::json_integer<std::uint64_t>(object.at("throttle_reasons"), "throttle_reasons")};
}

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

Key key_of(const machine::Host& host) { return {.of = "host", .model = host.cpu, .cpus = host.cpus_usable}; }

const Figure* Record::find(std::string_view id) const {
  for (const Figure& figure : figures)
    if (figure.id == id && figure.measured()) return &figure;
  return nullptr;
}

void to_json(json& object, const Figure& figure) {
  object = {{"id", figure.id}, {"value", figure.value}, {"how", figure.how}, {"why_not", figure.why_not}};
  if (const Known* known = find_known(figure.id)) object["unit"] = name_of(known->unit);
  if (!figure.sustained) return;
  const Sustained& s = *figure.sustained;
  object["sustained"] = {{"value", s.value},
                         {"duration_s", s.duration_s},
                         {"sm_clock_mhz", s.sm_clock_mhz},
                         {"power_w", s.power_w},
                         {"throttle_reasons", s.throttle_reasons}};
}

void from_json(const json& object, Figure& figure) {
  object.at("id").get_to(figure.id);
  figure.value = amount(object, "value");
  object.at("how").get_to(figure.how);
  object.at("why_not").get_to(figure.why_not);
  if (object.contains("sustained")) figure.sustained = sustained_from(object.at("sustained"));
}

void to_json(json& object, const Key& key) {
  object = {
      {"of", key.of}, {"model", key.model}, {"driver", key.driver}, {"power_limit_w", key.power_limit_w}, {"cpus", key.cpus}};
}

void from_json(const json& object, Key& key) {
  object.at("of").get_to(key.of);
  object.at("model").get_to(key.model);
  object.at("driver").get_to(key.driver);
  key.power_limit_w = amount(object, "power_limit_w");
  key.cpus = base::json_integer<int>(object.at("cpus"), "cpus");
}

void to_json(json& object, const Record& record) {
  object = {{"schema_version", 1},
            {"key", record.key},
            {"measured_utc", record.measured_utc},
            {"quick", record.quick},
            {"figures", record.figures}};
}

void from_json(const json& object, Record& record) {
  if (object.at("schema_version") != 1) throw std::invalid_argument{"it is of another version of aisp"};
  object.at("key").get_to(record.key);
  object.at("measured_utc").get_to(record.measured_utc);
  object.at("quick").get_to(record.quick);
  object.at("figures").get_to(record.figures);
}

}  // namespace aisp::peak
