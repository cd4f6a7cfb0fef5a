// SPDX-License-Identifier: Apache-2.0
#include "machine/machine.hpp"

#include "base/json_fields.hpp"

namespace aisp::machine {

template <class Visitor>
static void describe(GpuProcess& p, Visitor& visit) {
  visit("pid", p.pid);
  visit("name", p.name);
  visit("memory_bytes", p.memory_bytes);
}

template <class Visitor>
static void describe(GpuCondition& c, Visitor& visit) {
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
  visit("processes", c.processes);
}

template <class Visitor>
static void describe(Gpu& g, Visitor& visit) {
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
  visit("condition", g.condition);
}

template <class Visitor>
static void describe(NumaNode& n, Visitor& visit) {
  visit("id", n.id);
  visit("cpus", n.cpus);
  visit("memory_bytes", n.memory_bytes);
}

template <class Visitor>
static void describe(Host& h, Visitor& visit) {
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

template <class Visitor>
static void describe(Machine& m, Visitor& visit) {
  visit("gpus", m.gpus);
  visit("cuda_error", m.cuda_error);
  visit("cuda_advice", m.cuda_advice);
  visit("driver_cuda_version", m.driver_cuda_version);
  visit("runtime_cuda_version", m.runtime_cuda_version);
  visit("driver_version", m.driver_version);
  visit("nvml_error", m.nvml_error);
  visit("host", m.host);
}

void to_json(nlohmann::json& json, const Machine& machine) { json = base::json_of(machine); }

void from_json(const nlohmann::json& json, Machine& machine) {
  base::JsonReader reader{json, "machine"};
  describe(machine, reader);
}

}  // namespace aisp::machine
