// SPDX-License-Identifier: Apache-2.0
// The parent's side of the probe, and a machine as JSON; CUDA is called in probe/probe_cuda.cpp only.
#include "machine/machine.hpp"

#include <algorithm>

#include "base/hardware_key.hpp"
#include "base/json_fields.hpp"
#include "base/system/interrupt.hpp"
#include "machine/host.hpp"
#include "machine/probe/probe_answer.hpp"

namespace aisp::machine {
namespace {

Machine without_gpus(const std::string& error, const std::string& advice) {
  Machine machine;
  machine.cuda_error = error;
  machine.cuda_advice = advice;
  machine.driver_version = read_driver_version("/");
  machine.host = read_host();
  return machine;
}

}  // namespace

std::string cuda_version_text(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

Machine probe(double limit_s, const std::string& executable) try {
  const ProbeAnswer answer = ask_child("__probe", limit_s, executable);
  return answer.error.empty() ? answer.json.get<Machine>() : without_gpus(answer.error, answer.advice);
} catch (const std::exception& error) {
  if (base::interrupted()) throw;
  return without_gpus(std::string{"the process that asks the CUDA driver gave an unreadable answer: "} + error.what(),
                      "build aisp anew");
}

int probe_main(int fd) { return write_answer(fd, probe_here()); }

std::string hardware_key(const Machine& machine, const std::vector<int>& gpus) {
  std::vector<std::string> names;
  for (const Gpu& gpu : machine.gpus)
    if (std::find(gpus.begin(), gpus.end(), gpu.ordinal) != gpus.end()) names.push_back(gpu.name);
  return names.empty() ? std::string{base::hardware_of_hosts} : base::hardware_key(names);
}

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
