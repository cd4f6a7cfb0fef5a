// SPDX-License-Identifier: Apache-2.0
#include "machine/json.hpp"

#include <nlohmann/json.hpp>

namespace aisp::machine {
namespace {

template <class T>
void put(nlohmann::json& json, const char* name, const std::optional<T>& value) {
  json[name] = value ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

template <class T>
void get(const nlohmann::json& json, const char* name, std::optional<T>& value) {
  const auto found = json.find(name);
  if (found != json.end() && !found->is_null()) value = found->get<T>();
  else value.reset();
}

// Fields that an older or newer writer left out keep their defaults.
template <class T>
void get(const nlohmann::json& json, const char* name, T& value) {
  if (const auto found = json.find(name); found != json.end() && !found->is_null()) found->get_to(value);
}

// The same list of members in both directions.
template <class Condition, class Visit>
void each_optional(Condition& c, Visit visit) {
  visit("sm_clock_mhz", c.sm_clock_mhz);
  visit("sm_clock_max_mhz", c.sm_clock_max_mhz);
  visit("memory_clock_mhz", c.memory_clock_mhz);
  visit("memory_clock_max_mhz", c.memory_clock_max_mhz);
  visit("power_w", c.power_w);
  visit("power_limit_w", c.power_limit_w);
  visit("power_limit_default_w", c.power_limit_default_w);
  visit("power_limit_max_w", c.power_limit_max_w);
  visit("temperature_c", c.temperature_c);
  visit("throttle_reasons", c.throttle_reasons);
  visit("ecc", c.ecc);
  visit("ecc_pending", c.ecc_pending);
  visit("persistence", c.persistence);
  visit("mig_mode", c.mig_mode);
  visit("ecc_corrected", c.ecc_corrected);
  visit("ecc_uncorrected", c.ecc_uncorrected);
  visit("utilization_percent", c.utilization_percent);
  visit("energy_counter", c.energy_counter);
  visit("pcie_generation", c.pcie_generation);
  visit("pcie_generation_max", c.pcie_generation_max);
  visit("pcie_width", c.pcie_width);
  visit("pcie_width_max", c.pcie_width_max);
  visit("compute_mode", c.compute_mode);
  visit("memory_used_bytes", c.memory_used_bytes);
}

template <class G, class Visit>
void each_member_of_gpu(G& g, Visit visit) {
  visit("ordinal", g.ordinal);
  visit("uuid", g.uuid);
  visit("name", g.name);
  visit("sm", g.sm);
  visit("memory_bytes", g.memory_bytes);
  visit("sm_count", g.sm_count);
  visit("l2_bytes", g.l2_bytes);
  visit("shared_memory_optin_bytes", g.shared_memory_optin_bytes);
  visit("clock_khz", g.clock_khz);
  visit("memory_clock_khz", g.memory_clock_khz);
  visit("memory_bus_bits", g.memory_bus_bits);
  visit("pci", g.pci);
  visit("integrated", g.integrated);
  visit("mig", g.mig);
  visit("numa_node", g.numa_node);
  visit("attributes", g.attributes);
  visit("peers", g.peers);
}

template <class H, class Visit>
void each_member_of_host(H& h, Visit visit) {
  visit("hostname", h.hostname);
  visit("kernel", h.kernel);
  visit("system", h.system);
  visit("cpu", h.cpu);
  visit("container", h.container);
  visit("virtualization", h.virtualization);
  visit("cpus_online", h.cpus_online);
  visit("cpus_usable", h.cpus_usable);
  visit("cpu_quota", h.cpu_quota);
  visit("memory_bytes", h.memory_bytes);
  visit("memory_available_bytes", h.memory_available_bytes);
  visit("numa", h.numa);
}

template <class M, class Visit>
void each_member_of_machine(M& m, Visit visit) {
  visit("gpus", m.gpus);
  visit("cuda_error", m.cuda_error);
  visit("cuda_advice", m.cuda_advice);
  visit("driver_cuda_version", m.driver_cuda_version);
  visit("runtime_cuda_version", m.runtime_cuda_version);
  visit("driver_version", m.driver_version);
  visit("nvml_error", m.nvml_error);
  visit("host", m.host);
}

template <class C, class Visit>
void each_rate(C& c, Visit visit) {
  visit("copy_bytes_s", c.copy_bytes_s);
  visit("read_bytes_s", c.read_bytes_s);
  visit("host_to_device_bytes_s", c.host_to_device_bytes_s);
  visit("device_to_host_bytes_s", c.device_to_host_bytes_s);
  visit("peer_bytes_s", c.peer_bytes_s);
  visit("host_copy_bytes_s", c.host_copy_bytes_s);
  visit("launch_s", c.launch_s);
  visit("l2_bytes_s", c.l2_bytes_s);
  visit("wavefronts_s", c.wavefronts_s);
  visit("issue_slots_s", c.issue_slots_s);
  visit("special_functions_s", c.special_functions_s);
  visit("source", c.source);
}

auto writer(nlohmann::json& json) {
  json = nlohmann::json::object();
  return [&json](const char* name, const auto& value) { json[name] = value; };
}
auto reader(const nlohmann::json& json) {
  return [&json](const char* name, auto& value) { get(json, name, value); };
}

}  // namespace

void to_json(nlohmann::json& json, const GpuProcess& process) {
  json = {{"pid", process.pid}, {"name", process.name}, {"memory_bytes", process.memory_bytes}};
}
void from_json(const nlohmann::json& json, GpuProcess& process) {
  get(json, "pid", process.pid);
  get(json, "name", process.name);
  get(json, "memory_bytes", process.memory_bytes);
}

void to_json(nlohmann::json& json, const GpuCondition& condition) {
  json = nlohmann::json::object();
  each_optional(condition, [&](const char* name, const auto& value) { put(json, name, value); });
  json["processes"] = condition.processes;
}
void from_json(const nlohmann::json& json, GpuCondition& condition) {
  each_optional(condition, [&](const char* name, auto& value) { get(json, name, value); });
  get(json, "processes", condition.processes);
}

void to_json(nlohmann::json& json, const Gpu& gpu) {
  each_member_of_gpu(gpu, writer(json));
  put(json, "condition", gpu.condition);
}
void from_json(const nlohmann::json& json, Gpu& gpu) {
  each_member_of_gpu(gpu, reader(json));
  get(json, "condition", gpu.condition);
}

void to_json(nlohmann::json& json, const NumaNode& node) {
  json = {{"id", node.id}, {"cpus", node.cpus}, {"memory_bytes", node.memory_bytes}};
}
void from_json(const nlohmann::json& json, NumaNode& node) {
  get(json, "id", node.id);
  get(json, "cpus", node.cpus);
  get(json, "memory_bytes", node.memory_bytes);
}

void to_json(nlohmann::json& json, const Host& host) { each_member_of_host(host, writer(json)); }
void from_json(const nlohmann::json& json, Host& host) { each_member_of_host(host, reader(json)); }
void to_json(nlohmann::json& json, const Machine& machine) { each_member_of_machine(machine, writer(json)); }
void from_json(const nlohmann::json& json, Machine& machine) { each_member_of_machine(machine, reader(json)); }

void to_json(nlohmann::json& json, const Ceilings& ceilings) {
  each_rate(ceilings, writer(json));
  for (std::size_t i = 0; i < math_kinds; ++i) json["flops_s"][std::string{name_of(static_cast<Math>(i))}] = ceilings.flops_s[i];
}
void from_json(const nlohmann::json& json, Ceilings& ceilings) {
  each_rate(ceilings, reader(json));
  const nlohmann::json rates = json.value("flops_s", nlohmann::json::object());
  for (std::size_t i = 0; i < math_kinds; ++i)
    get(rates, std::string{name_of(static_cast<Math>(i))}.c_str(), ceilings.flops_s[i]);
}

}  // namespace aisp::machine
