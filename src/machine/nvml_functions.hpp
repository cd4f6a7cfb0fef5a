// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <optional>

namespace aisp::machine {

// NVML's own interface, as far as it is used: its header is not part of the toolkit's compiler packages. Every function returns 0
// for success; a pointer stays null when the library has no such function.
struct NvmlFunctions {
  using Device = void*;
  struct Process {
    unsigned pid;
    unsigned long long memory_bytes;
    unsigned gpu_instance, compute_instance;
  };
  struct Utilization {
    unsigned gpu, memory;
  };
  struct Memory {
    unsigned long long total, free, used;
  };
  struct PciInfo {
    std::array<char, 16> legacy_address;
    unsigned domain, bus, device, device_id, subsystem_id;
    std::array<char, 32> address;
  };
  struct FieldValue {
    unsigned field, scope;
    long long timestamp, latency_us;
    unsigned type;
    int status;
    union {
      double as_double;
      unsigned as_unsigned;
      unsigned long long as_long;
    } value;
  };
  using ReadUnsigned = int (*)(Device, unsigned*);
  using ReadTyped = int (*)(Device, unsigned type, unsigned*);
  using ReadTwo = int (*)(Device, unsigned*, unsigned*);
  using ReadLong = int (*)(Device, unsigned long long*);

  int (*init)() = nullptr;
  const char* (*error_string)(int) = nullptr;
  int (*system_driver_version)(char*, unsigned) = nullptr;
  int (*by_uuid)(const char*, Device*) = nullptr;
  ReadTyped clock = nullptr, max_clock = nullptr, temperature = nullptr;
  ReadUnsigned power = nullptr, power_limit = nullptr, power_default = nullptr;
  ReadTwo power_range = nullptr, ecc_mode = nullptr, mig_mode = nullptr;
  ReadLong throttle = nullptr, energy = nullptr;
  int (*ecc_errors)(Device, int error_type, int counter_type, unsigned long long*) = nullptr;
  ReadUnsigned persistence = nullptr, compute_mode = nullptr;
  ReadUnsigned pcie_generation = nullptr, pcie_generation_max = nullptr, pcie_width = nullptr, pcie_width_max = nullptr;
  int (*utilization)(Device, Utilization*) = nullptr;
  int (*memory)(Device, Memory*) = nullptr;
  int (*processes)(Device, unsigned*, Process*) = nullptr;
  ReadTyped link_state = nullptr, link_version = nullptr, link_remote_type = nullptr;
  int (*link_remote_pci)(Device, unsigned link, PciInfo*) = nullptr;
  int (*field_values)(Device, int count, FieldValue*) = nullptr;
  int (*cpu_affinity)(Device, unsigned words, unsigned long*) = nullptr;
  int (*common_ancestor)(Device, Device, unsigned*) = nullptr;
};

// Calls `function` with `arguments` and the address of a T; the T when the call succeeds.
template <class T, class F, class... Arguments>
std::optional<T> ask(F function, Arguments... arguments) {
  T value{};
  if (function == nullptr || function(arguments..., &value) != 0) return std::nullopt;
  return value;
}

}  // namespace aisp::machine
