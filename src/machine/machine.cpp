// SPDX-License-Identifier: Apache-2.0
// The parent's side of the probe, and a machine as JSON; CUDA is called in probe/probe_cuda.cpp only.
#include "machine/machine.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/hardware_key.hpp"
#include "base/json_fields.hpp"
#include "base/system/files.hpp"
#include "base/system/interrupt.hpp"
#include "base/system/places.hpp"
#include "base/system/process.hpp"
#include "base/text.hpp"
#include "machine/host.hpp"
#include "machine/probe_answer.hpp"

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

AISP_DESCRIBE(GpuProcess, pid, name, memory_bytes)
AISP_DESCRIBE(GpuCondition, sm_clock_mhz, sm_clock_max_mhz, memory_clock_mhz, memory_clock_max_mhz, power_w, power_limit_w,
              power_limit_default_w, power_limit_max_w, temperature_c, throttle_reasons, ecc, ecc_pending, persistence, mig_mode,
              ecc_corrected, ecc_uncorrected, utilization_percent, energy_counter, pcie_generation, pcie_generation_max,
              pcie_width, pcie_width_max, compute_mode, memory_used_bytes, processes)
AISP_DESCRIBE(Gpu, ordinal, uuid, name, sm, memory_bytes, sm_count, l2_bytes, shared_memory_optin_bytes, clock_khz,
              memory_clock_khz, memory_bus_bits, pci, integrated, mig, numa_node, attributes, peers, condition)
AISP_DESCRIBE(NumaNode, id, cpus, memory_bytes)
AISP_DESCRIBE(Host, hostname, kernel, system, cpu, container, virtualization, cpus_online, cpus_usable, cpu_quota, memory_bytes,
              memory_available_bytes, numa)
AISP_DESCRIBE(Machine, gpus, cuda_error, cuda_advice, driver_cuda_version, runtime_cuda_version, driver_version, nvml_error, host)

void to_json(nlohmann::json& json, const Machine& machine) { json = base::json_of(machine); }

void from_json(const nlohmann::json& json, Machine& machine) {
  base::JsonReader reader{json, "machine"};
  describe(machine, reader);
}

ProbeAnswer ask_child(const std::string& command, double limit_s, const std::string& executable) try {
  const std::string see_smi =
      "look at nvidia-smi and the kernel's log (dmesg); " + base::script("reset-gpu.sh") + " or a reboot may help";
  std::string text;
  const base::ChildOutcome outcome = base::ask({.executable = executable,
                                                .command = command,
                                                .limit_s = limit_s,
                                                .interrupted = "interrupted while the CUDA driver was asked"},
                                               [&](std::string_view part) { text += part; });
  if (!outcome.in_time) return {{}, "the CUDA driver did not answer within " + base::human_duration(limit_s), see_smi};
  if (outcome.end && outcome.end->signalled)
    return {{}, "the CUDA driver crashed the process that asked it (" + outcome.end_text() + ")", see_smi};
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_object()) return {std::move(json), {}, {}};
  return {{}, "the process that asks the CUDA driver gave no answer (" + outcome.end_text() + ")", see_smi};
} catch (const base::Error& error) {
  if (error.status() == base::Exit::interrupted) throw;
  return {{}, error.what(), "check the limits on processes (ulimit -u) and the program's file"};
}

int write_answer(int fd, const nlohmann::json& answer) {
  const std::string text = answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return static_cast<int>(base::write_all(fd, text) == 0 ? base::Exit::good : base::Exit::failed);
}

}  // namespace aisp::machine
