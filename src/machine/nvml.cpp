// SPDX-License-Identifier: Apache-2.0
#include "machine/nvml.hpp"

#include <aisp/check.hpp>
#include <aisp/library.hpp>

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include "base/system/files.hpp"
#include "base/text.hpp"
#include "machine/nvml_functions.hpp"

namespace aisp::machine {

namespace {

constexpr unsigned sm_clock = 1, memory_clock = 2, gpu_temperature = 0;
constexpr int corrected_error = 0, uncorrected_error = 1, since_load = 0;

template <class F>
void look_up(F*& target, const std::function<void*(const char*)>& symbol, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (target == nullptr) target = reinterpret_cast<F*>(symbol(name));
}

void bind_all(NvmlFunctions& f, const std::function<void*(const char*)>& symbol) {
  look_up(f.init, symbol, {"nvmlInit_v2", "nvmlInit"});
  look_up(f.error_string, symbol, {"nvmlErrorString"});
  look_up(f.system_driver_version, symbol, {"nvmlSystemGetDriverVersion"});
  look_up(f.by_uuid, symbol, {"nvmlDeviceGetHandleByUUID"});
  look_up(f.clock, symbol, {"nvmlDeviceGetClockInfo"});
  look_up(f.max_clock, symbol, {"nvmlDeviceGetMaxClockInfo"});
  look_up(f.temperature, symbol, {"nvmlDeviceGetTemperature"});
  look_up(f.power, symbol, {"nvmlDeviceGetPowerUsage"});
  look_up(f.power_limit, symbol, {"nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementLimit"});
  look_up(f.power_default, symbol, {"nvmlDeviceGetPowerManagementDefaultLimit"});
  look_up(f.power_range, symbol, {"nvmlDeviceGetPowerManagementLimitConstraints"});
  look_up(f.ecc_mode, symbol, {"nvmlDeviceGetEccMode"});
  look_up(f.mig_mode, symbol, {"nvmlDeviceGetMigMode"});
  look_up(f.throttle, symbol, {"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"});
  look_up(f.energy, symbol, {"nvmlDeviceGetTotalEnergyConsumption"});
  look_up(f.ecc_errors, symbol, {"nvmlDeviceGetTotalEccErrors"});
  look_up(f.persistence, symbol, {"nvmlDeviceGetPersistenceMode"});
  look_up(f.compute_mode, symbol, {"nvmlDeviceGetComputeMode"});
  look_up(f.pcie_generation, symbol, {"nvmlDeviceGetCurrPcieLinkGeneration"});
  look_up(f.pcie_generation_max, symbol, {"nvmlDeviceGetMaxPcieLinkGeneration"});
  look_up(f.pcie_width, symbol, {"nvmlDeviceGetCurrPcieLinkWidth"});
  look_up(f.pcie_width_max, symbol, {"nvmlDeviceGetMaxPcieLinkWidth"});
  look_up(f.utilization, symbol, {"nvmlDeviceGetUtilizationRates"});
  look_up(f.memory, symbol, {"nvmlDeviceGetMemoryInfo"});
  look_up(f.processes, symbol, {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"});
  look_up(f.link_state, symbol, {"nvmlDeviceGetNvLinkState"});
  look_up(f.link_version, symbol, {"nvmlDeviceGetNvLinkVersion"});
  look_up(f.link_remote_type, symbol, {"nvmlDeviceGetNvLinkRemoteDeviceType"});
  look_up(f.link_remote_pci, symbol, {"nvmlDeviceGetNvLinkRemotePciInfo_v2"});
  look_up(f.field_values, symbol, {"nvmlDeviceGetFieldValues"});
  look_up(f.cpu_affinity, symbol, {"nvmlDeviceGetCpuAffinity"});
  look_up(f.common_ancestor, symbol, {"nvmlDeviceGetTopologyCommonAncestor"});
}

std::optional<int> as_int(std::optional<unsigned> value) {
  return value ? std::optional<int>{static_cast<int>(*value)} : std::nullopt;
}
std::optional<double> as_watts(std::optional<unsigned> milliwatts) {
  return milliwatts ? std::optional<double>{*milliwatts / 1e3} : std::nullopt;
}
std::optional<std::uint64_t> as_count(std::optional<unsigned long long> value) {
  return value ? std::optional<std::uint64_t>{*value} : std::nullopt;
}
std::optional<bool> as_bool(std::optional<unsigned> value) { return value ? std::optional<bool>{*value != 0} : std::nullopt; }

std::string process_name(int pid) {
  const auto name = base::try_read_file("/proc/" + std::to_string(pid) + "/comm");
  return name ? std::string{base::trim(*name)} : std::string{};
}

struct ClockReason {
  std::uint64_t bit;
  const char* text;
  bool slows;
};
constexpr std::array reasons = {
    ClockReason{0x1, "idle", false},
    ClockReason{0x2, "application clocks", true},
    ClockReason{0x4, "software power cap", true},
    ClockReason{0x8, "hardware slowdown", true},
    ClockReason{0x10, "sync boost", true},
    ClockReason{0x20, "software thermal slowdown", true},
    ClockReason{0x40, "hardware thermal slowdown", true},
    ClockReason{0x80, "hardware power brake", true},
    ClockReason{0x100, "display clocks", false},
};

}  // namespace

Nvml::Nvml(const std::function<void*(const char*)>& symbol) : functions_{std::make_unique<NvmlFunctions>()} {
  bind_all(*functions_, symbol);
  if (functions_->init == nullptr) {
    error_ = "libnvidia-ml.so.1 has no nvmlInit";
    return;
  }
  const int status = functions_->init();
  if (status == 0) return;
  const char* text = functions_->error_string != nullptr ? functions_->error_string(status) : nullptr;
  error_ = "NVML cannot be used: " + (text != nullptr ? std::string{text} : "error " + std::to_string(status));
}

Nvml::Nvml(std::string error) : functions_{std::make_unique<NvmlFunctions>()}, error_{std::move(error)} {}
Nvml::~Nvml() = default;

const Nvml& Nvml::get() {
  static const Nvml nvml = [] {
    try {
      const SharedLibrary& library = SharedLibrary::open(Library::nvml);
      return Nvml{[&](const char* name) {
        return library.has(name) ? reinterpret_cast<void*>(library.function<void()>(name)) : nullptr;
      }};
    } catch (const std::exception& error) {
      return Nvml{std::string{error.what()}};
    }
  }();
  return nvml;
}

std::optional<std::string> Nvml::driver_version() const {
  std::array<char, 96> text{};
  if (!available() || functions_->system_driver_version == nullptr ||
      functions_->system_driver_version(text.data(), static_cast<unsigned>(text.size() - 1)) != 0)
    return std::nullopt;
  return text.data();
}

std::optional<NvmlDevice> Nvml::device(const std::string& uuid) const {
  if (!available()) return std::nullopt;
  const auto handle = ask<void*>(functions_->by_uuid, uuid.c_str());
  if (!handle) return std::nullopt;
  return NvmlDevice{*functions_, *handle};
}

std::optional<int> NvmlDevice::sm_clock_mhz() const { return as_int(ask<unsigned>(functions_->clock, handle_, sm_clock)); }
std::optional<std::uint64_t> NvmlDevice::throttle_reasons() const {
  return as_count(ask<unsigned long long>(functions_->throttle, handle_));
}
std::optional<std::uint64_t> NvmlDevice::energy_mj() const {
  return as_count(ask<unsigned long long>(functions_->energy, handle_));
}

std::optional<GpuSample> NvmlDevice::sample() const {
  const auto clock = sm_clock_mhz();
  const auto power_w = as_watts(ask<unsigned>(functions_->power, handle_));
  if (!clock && !power_w) return std::nullopt;
  return GpuSample{.sm_clock_mhz = clock.value_or(0),
                   .memory_clock_mhz = as_int(ask<unsigned>(functions_->clock, handle_, memory_clock)).value_or(0),
                   .power_w = power_w.value_or(0),
                   .temperature_c = as_int(ask<unsigned>(functions_->temperature, handle_, gpu_temperature)).value_or(0),
                   .throttle_reasons = throttle_reasons().value_or(0)};
}

std::vector<GpuProcess> NvmlDevice::compute_processes() const {
  if (functions_->processes == nullptr) return {};
  std::vector<NvmlFunctions::Process> raw(64);
  for (int attempt = 0; attempt < 4; ++attempt) {
    auto count = static_cast<unsigned>(raw.size());
    const int status = functions_->processes(handle_, &count, raw.data());
    if (status == 0) {
      raw.resize(std::min<std::size_t>(count, raw.size()));
      break;
    }
    constexpr int too_small = 7;
    if (status != too_small || attempt == 3) return {};
    raw.resize(std::max<std::size_t>(count, raw.size()) * 2);  // more may start meanwhile
  }
  std::vector<GpuProcess> processes;
  for (const auto& process : raw) {
    constexpr unsigned long long not_told = ~0ull;
    const int pid = static_cast<int>(process.pid);
    processes.push_back({pid, process_name(pid), process.memory_bytes == not_told ? 0 : process.memory_bytes});
  }
  return processes;
}

std::optional<std::uint64_t> NvmlDevice::memory_of_process(int pid) const {
  for (const GpuProcess& process : compute_processes())
    if (process.pid == pid && process.memory_bytes > 0) return process.memory_bytes;
  return std::nullopt;
}

GpuCondition NvmlDevice::condition() const {
  const NvmlFunctions& f = *functions_;
  GpuCondition state;
  state.sm_clock_mhz = sm_clock_mhz();
  state.sm_clock_max_mhz = as_int(ask<unsigned>(f.max_clock, handle_, sm_clock));
  state.memory_clock_mhz = as_int(ask<unsigned>(f.clock, handle_, memory_clock));
  state.memory_clock_max_mhz = as_int(ask<unsigned>(f.max_clock, handle_, memory_clock));
  state.power_w = as_watts(ask<unsigned>(f.power, handle_));
  state.power_limit_w = as_watts(ask<unsigned>(f.power_limit, handle_));
  state.power_limit_default_w = as_watts(ask<unsigned>(f.power_default, handle_));
  unsigned least = 0;
  if (const auto most = ask<unsigned>(f.power_range, handle_, &least)) state.power_limit_max_w = *most / 1e3;
  state.temperature_c = as_int(ask<unsigned>(f.temperature, handle_, gpu_temperature));
  state.throttle_reasons = throttle_reasons();
  unsigned current = 0;
  if (const auto pending = ask<unsigned>(f.ecc_mode, handle_, &current)) {
    state.ecc = current != 0;
    state.ecc_pending = *pending != 0;
  }
  if (ask<unsigned>(f.mig_mode, handle_, &current)) state.mig_mode = current != 0;
  state.ecc_corrected = as_count(ask<unsigned long long>(f.ecc_errors, handle_, corrected_error, since_load));
  state.ecc_uncorrected = as_count(ask<unsigned long long>(f.ecc_errors, handle_, uncorrected_error, since_load));
  state.persistence = as_bool(ask<unsigned>(f.persistence, handle_));
  state.compute_mode = as_int(ask<unsigned>(f.compute_mode, handle_));
  state.pcie_generation = as_int(ask<unsigned>(f.pcie_generation, handle_));
  state.pcie_generation_max = as_int(ask<unsigned>(f.pcie_generation_max, handle_));
  state.pcie_width = as_int(ask<unsigned>(f.pcie_width, handle_));
  state.pcie_width_max = as_int(ask<unsigned>(f.pcie_width_max, handle_));
  if (const auto used = ask<NvmlFunctions::Utilization>(f.utilization, handle_))
    state.utilization_percent = static_cast<int>(used->gpu);
  if (const auto memory = ask<NvmlFunctions::Memory>(f.memory, handle_)) state.memory_used_bytes = memory->used;
  state.energy_counter = energy_mj().has_value();
  state.processes = compute_processes();
  return state;
}

std::string throttle_text(std::uint64_t bits) {
  std::vector<std::string> parts;
  for (const ClockReason& reason : reasons) {
    if ((bits & reason.bit) != 0) parts.emplace_back(reason.text);
    bits &= ~reason.bit;
  }
  if (bits != 0) parts.emplace_back("a reason this version does not know");
  return base::join(parts, ", ");
}

bool slows_down(std::uint64_t bits) {
  for (const ClockReason& reason : reasons)
    if ((bits & reason.bit) != 0 && reason.slows) return true;
  return false;
}

}  // namespace aisp::machine
