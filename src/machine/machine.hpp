// SPDX-License-Identifier: Apache-2.0
// The description of this machine: found out once per command, by a child process, because the CUDA driver may hang or crash.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace aisp::machine {

struct GpuProcess {
  int pid = 0;
  std::string name;  // empty when this user may not see it
  std::uint64_t memory_bytes = 0;
};

// A GPU's state by NVML at the time of the probe. Absent values: NVML is missing, or does not know them on this GPU.
struct GpuCondition {
  std::optional<int> sm_clock_mhz, sm_clock_max_mhz, memory_clock_mhz, memory_clock_max_mhz;
  std::optional<double> power_w, power_limit_w, power_limit_default_w, power_limit_max_w;
  std::optional<int> temperature_c;
  std::optional<std::uint64_t> throttle_reasons;
  std::optional<bool> ecc, ecc_pending, persistence, mig_mode;
  std::optional<std::uint64_t> ecc_corrected, ecc_uncorrected;  // since the driver was loaded
  std::optional<int> utilization_percent;
  std::optional<bool> energy_counter;
  std::optional<int> pcie_generation, pcie_generation_max, pcie_width, pcie_width_max;
  std::optional<int> compute_mode;  // 0 default, 2 prohibited, 3 exclusive process
  std::optional<std::uint64_t> memory_used_bytes;
  std::vector<GpuProcess> processes;
};

struct Gpu {
  int ordinal = 0;   // among the GPUs that CUDA shows here
  std::string uuid;  // "GPU-..." or "MIG-...", as CUDA_VISIBLE_DEVICES takes it
  std::string name;  // "NVIDIA H200"
  int sm = 0;        // compute capability times ten
  std::uint64_t memory_bytes = 0;
  int sm_count = 0;
  std::uint64_t l2_bytes = 0;
  std::uint64_t shared_memory_optin_bytes = 0;  // per block
  int clock_khz = 0;                            // maximum
  int memory_clock_khz = 0;
  int memory_bus_bits = 0;
  std::string pci;  // "0000:04:00.0"
  bool integrated = false;
  bool mig = false;  // a slice of a GPU
  int numa_node = -1;
  std::vector<int> attributes;  // by cudaDeviceAttr; what the runtime does not know is 0
  std::vector<bool> peers;      // by ordinal: can address that GPU's memory
  std::optional<GpuCondition> condition;

  // Value of a cudaDeviceAttr; 0 beyond what was read.
  int attribute(int index) const {
    return index >= 0 && static_cast<std::size_t>(index) < attributes.size() ? attributes[static_cast<std::size_t>(index)] : 0;
  }
};

struct NumaNode {
  int id = 0;
  std::vector<int> cpus;
  std::uint64_t memory_bytes = 0;
};

struct Host {
  std::string hostname;
  std::string kernel;          // "Linux 6.1.0-18-amd64 x86_64"
  std::string system;          // "Debian GNU/Linux 12 (bookworm)"
  std::string cpu;             // model name
  std::string container;       // "docker", "podman", "kubernetes", "gvisor", "container"; empty outside one
  std::string virtualization;  // "firecracker", "kvm", ...; empty on bare metal or when unknown
  int cpus_online = 0;
  int cpus_usable = 0;   // in this process's affinity mask
  double cpu_quota = 0;  // CPUs the cgroup grants; 0: no limit
  std::uint64_t memory_bytes = 0;
  std::uint64_t memory_available_bytes = 0;  // the cgroup's limit included
  std::vector<NumaNode> numa;
};

struct Machine {
  std::vector<Gpu> gpus;
  std::string cuda_error;        // why there is no GPU, one clause; empty when there is one
  std::string cuda_advice;       // what to do about it
  int driver_cuda_version = 0;   // newest CUDA the driver supports, as 13000; 0 without a driver
  int runtime_cuda_version = 0;  // CUDA runtime linked in
  std::string driver_version;    // "580.95.05"; empty without a driver
  std::string nvml_error;        // why NVML gives nothing; empty when it does
  Host host;
};

// This process asks CUDA, NVML and the system itself. Only in a child: the answer may never come.
Machine probe_here();

// Runs `executable __probe` and reads its answer; a probe that hangs or dies gives a Machine without GPUs whose cuda_error says
// so.
Machine probe(double limit_s = 60, const std::string& executable = "/proc/self/exe");

// The hidden command `aisp __probe`: writes the Machine as JSON to descriptor `fd`. Returns the exit status.
int probe_main(int fd);

// Returns what CUDA cannot make of a value of CUDA_VISIBLE_DEVICES, "names 0 twice"; empty for a value that is well formed.
std::string fault_of_visible_devices(std::string_view value);

// Returns "13.0" for 13000.
std::string cuda_version_text(int version);

// Returns the key of the GPUs given, by ordinal (base/hardware_key.hpp); "host" for none.
std::string hardware_key(const Machine& machine, const std::vector<int>& gpus);

// As the child that asked the driver tells it, and `aisp doctor --json`. What is unknown is left out.
void to_json(nlohmann::json& json, const Machine& machine);
void from_json(const nlohmann::json& json, Machine& machine);

}  // namespace aisp::machine
