// SPDX-License-Identifier: Apache-2.0
// The NVIDIA Management Library, opened at run time. Reading needs no root and no CUDA context, and works in containers. What
// this driver or GPU does not tell is nullopt.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "machine/machine.hpp"
#include "machine/topology/topology.hpp"

namespace aisp::machine {

struct GpuSample {
  int sm_clock_mhz = 0;
  int memory_clock_mhz = 0;
  double power_w = 0;
  int temperature_c = 0;
  std::uint64_t throttle_reasons = 0;  // what throttle_text() reads
};

// Returns the address of a function of NVML by its name; null if the library has none.
using NvmlSymbols = std::function<void*(const char*)>;

class NvmlDevice {
 public:
  NvmlDevice(const NvmlSymbols& symbol, void* handle) : symbol_{&symbol}, handle_{handle} {}

  std::optional<GpuSample> sample() const;         // below a millisecond; fields the GPU does not tell stay 0
  std::optional<std::uint64_t> energy_mj() const;  // total since the driver was loaded
  std::optional<int> sm_clock_mhz() const;
  std::optional<std::uint64_t> throttle_reasons() const;
  std::vector<GpuProcess> compute_processes() const;
  // Device memory of the process `pid` alone; containers that see other numbers of processes are not told.
  std::optional<std::uint64_t> memory_of_process(int pid) const;
  GpuCondition condition() const;

  // Empty with a reason in `why_not` when there are none, or nothing is told of them.
  std::vector<NvLink> nvlinks(std::string& why_not) const;
  std::vector<int> nearest_cpus() const;                              // empty: not told
  std::optional<int> common_ancestor(const NvmlDevice& other) const;  // nvmlGpuTopologyLevel_t

 private:
  const NvmlSymbols* symbol_;
  void* handle_;
};

class Nvml {
 public:
  // Opened by the first call. Never throws: available() and error() tell.
  static const Nvml& get();

  // For tests: functions found by `symbol`.
  explicit Nvml(NvmlSymbols symbol);
  explicit Nvml(std::string error);
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  bool available() const { return error_.empty(); }
  const std::string& error() const { return error_; }
  std::optional<std::string> driver_version() const;
  std::optional<NvmlDevice> device(const std::string& uuid) const;

 private:
  NvmlSymbols symbol_;
  std::string error_;
};

// Bits of NVML's clocks event reasons that hold the clock back: "software power cap, thermal slowdown (software)". Idle and
// application-chosen clocks are named too; empty for 0.
std::string throttle_text(std::uint64_t reasons);
// Without idle and other harmless ones.
bool slows_down(std::uint64_t reasons);

}  // namespace aisp::machine
