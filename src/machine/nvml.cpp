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

namespace aisp::machine {
namespace {

// NVML's own numbers and types, as far as they are used: its header is not part of the toolkit's compiler packages.
constexpr unsigned sm_clock = 1, memory_clock = 2, gpu_temperature = 0;
constexpr int corrected_error = 0, uncorrected_error = 1, since_load = 0;
constexpr int success = 0, invalid_argument = 2, not_supported = 3, insufficient_size = 7;
constexpr unsigned field_link_mbytes_common = 90, field_link_mbytes = 164;  // NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, _GET_SPEED

struct ProcessInfo {
  unsigned pid;
  unsigned long long memory_bytes;
  unsigned gpu_instance, compute_instance;
};
struct Utilization {
  unsigned gpu, memory;
};
struct MemoryInfo {
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

// Returns the function of a library that may lack it, or the first of several names for it; null if there is none.
template <class F>
F* find(const NvmlSymbols& symbol, std::initializer_list<const char*> names) {
  for (const char* const name : names)
    if (void* const found = symbol(name); found != nullptr) return reinterpret_cast<F*>(found);
  return nullptr;
}

// Calls the function of that name with `arguments` and the address of a T; the T when the call succeeds.
template <class T, class... Arguments>
std::optional<T> ask(const NvmlSymbols& symbol, std::initializer_list<const char*> names, Arguments... arguments) {
  T value{};
  auto* const function = find<int(Arguments..., T*)>(symbol, names);
  if (function == nullptr || function(arguments..., &value) != success) return std::nullopt;
  return value;
}
template <class T, class... Arguments>
std::optional<T> ask(const NvmlSymbols& symbol, const char* name, Arguments... arguments) {
  return ask<T>(symbol, {name}, arguments...);
}

std::string error_text(const NvmlSymbols& symbol, int status) {
  auto* const function = find<const char*(int)>(symbol, {"nvmlErrorString"});
  const char* const text = function != nullptr ? function(status) : nullptr;
  return text != nullptr ? std::string{text} : "error " + std::to_string(status);
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

std::optional<std::uint64_t> field_bytes_s(const NvmlSymbols& symbol, void* device, unsigned field, unsigned link) {
  FieldValue value{};
  value.field = field;
  value.scope = link;
  auto* const read = find<int(void*, int, FieldValue*)>(symbol, {"nvmlDeviceGetFieldValues"});
  if (read == nullptr || read(device, 1, &value) != success || value.status != success) return std::nullopt;
  // The documented type is unsigned int; 64-bit ones hold the same number in their lower half on the machines this runs on.
  if (value.value.as_unsigned == 0) return std::nullopt;
  return std::uint64_t{value.value.as_unsigned} * 1'000'000;
}

// nvmlNvlinkVersion_t is a list of versions, not a number: 6 stands for NVLink 4.0.
std::string version_text(unsigned version) {
  constexpr std::array versions = {"", "1.0", "2.0", "2.2", "3.0", "3.1", "4.0", "5.0", "6.0"};
  return version < versions.size() ? versions.at(version) : "";
}

std::string remote_name(std::optional<unsigned> type) {
  if (!type) return {};
  switch (*type) {
    case 0: return "GPU";
    case 1: return "NPU";
    case 2: return std::string{nvswitch};
    default: return {};
  }
}

// NVML writes domains with eight digits, the system with four.
std::string system_address(const std::array<char, 32>& address) {
  const std::string text = base::lower(std::string{address.begin(), std::find(address.begin(), address.end(), '\0')});
  constexpr std::size_t long_form = 16;
  return text.size() == long_form && text.starts_with("0000") ? text.substr(4) : text;
}

NvLink read_link(const NvmlSymbols& symbol, void* device, unsigned link, bool active) {
  NvLink found{.link = static_cast<int>(link), .active = active};
  if (const auto version = ask<unsigned>(symbol, "nvmlDeviceGetNvLinkVersion", device, link))
    found.version = version_text(*version);
  if (!active) return found;
  found.bytes_s = field_bytes_s(symbol, device, field_link_mbytes, link);
  if (!found.bytes_s) found.bytes_s = field_bytes_s(symbol, device, field_link_mbytes_common, 0);
  found.remote = remote_name(ask<unsigned>(symbol, "nvmlDeviceGetNvLinkRemoteDeviceType", device, link));
  if (const auto pci = ask<PciInfo>(symbol, "nvmlDeviceGetNvLinkRemotePciInfo_v2", device, link))
    found.remote_pci = system_address(pci->address);
  return found;
}

}  // namespace

Nvml::Nvml(NvmlSymbols symbol) : symbol_{std::move(symbol)} {
  auto* const init = find<int()>(symbol_, {"nvmlInit_v2", "nvmlInit"});
  const int status = init != nullptr ? init() : success;
  if (init == nullptr) error_ = "libnvidia-ml.so.1 has no nvmlInit";
  else if (status != success) error_ = "NVML cannot be used: " + error_text(symbol_, status);
}

Nvml::Nvml(std::string error) : error_{std::move(error)} {}

const Nvml& Nvml::get() {
  static const Nvml nvml = [] {
    try {
      return Nvml{[library = &SharedLibrary::open(Library::nvml)](const char* name) {
        return library->has(name) ? reinterpret_cast<void*>(library->function<void()>(name)) : nullptr;
      }};
    } catch (const std::exception& error) {
      return Nvml{std::string{error.what()}};
    }
  }();
  return nvml;
}

std::optional<std::string> Nvml::driver_version() const {
  std::array<char, 96> text{};
  if (!available()) return std::nullopt;
  auto* const read = find<int(char*, unsigned)>(symbol_, {"nvmlSystemGetDriverVersion"});
  if (read == nullptr || read(text.data(), static_cast<unsigned>(text.size() - 1)) != success) return std::nullopt;
  return text.data();
}

std::optional<NvmlDevice> Nvml::device(const std::string& uuid) const {
  if (!available()) return std::nullopt;
  const auto handle = ask<void*>(symbol_, "nvmlDeviceGetHandleByUUID", uuid.c_str());
  if (!handle) return std::nullopt;
  return NvmlDevice{symbol_, *handle};
}

std::optional<int> NvmlDevice::sm_clock_mhz() const {
  return as_int(ask<unsigned>(*symbol_, "nvmlDeviceGetClockInfo", handle_, sm_clock));
}
std::optional<std::uint64_t> NvmlDevice::throttle_reasons() const {
  return as_count(ask<unsigned long long>(
      *symbol_, {"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"}, handle_));
}
std::optional<std::uint64_t> NvmlDevice::energy_mj() const {
  return as_count(ask<unsigned long long>(*symbol_, "nvmlDeviceGetTotalEnergyConsumption", handle_));
}

std::optional<GpuSample> NvmlDevice::sample() const {
  const auto clock = sm_clock_mhz();
  const auto power_w = as_watts(ask<unsigned>(*symbol_, "nvmlDeviceGetPowerUsage", handle_));
  if (!clock && !power_w) return std::nullopt;
  return GpuSample{
      .sm_clock_mhz = clock.value_or(0),
      .memory_clock_mhz = as_int(ask<unsigned>(*symbol_, "nvmlDeviceGetClockInfo", handle_, memory_clock)).value_or(0),
      .power_w = power_w.value_or(0),
      .temperature_c = as_int(ask<unsigned>(*symbol_, "nvmlDeviceGetTemperature", handle_, gpu_temperature)).value_or(0),
      .throttle_reasons = throttle_reasons().value_or(0)};
}

std::vector<GpuProcess> NvmlDevice::compute_processes() const {
  auto* const list = find<int(void*, unsigned*, ProcessInfo*)>(
      *symbol_, {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"});
  if (list == nullptr) return {};
  std::vector<ProcessInfo> raw(64);
  for (int attempt = 0; attempt < 4; ++attempt) {
    auto count = static_cast<unsigned>(raw.size());
    const int status = list(handle_, &count, raw.data());
    if (status == success) {
      raw.resize(std::min<std::size_t>(count, raw.size()));
      break;
    }
    if (status != insufficient_size || attempt == 3) return {};
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
  const NvmlSymbols& f = *symbol_;
  GpuCondition state;
  state.sm_clock_mhz = sm_clock_mhz();
  state.sm_clock_max_mhz = as_int(ask<unsigned>(f, "nvmlDeviceGetMaxClockInfo", handle_, sm_clock));
  state.memory_clock_mhz = as_int(ask<unsigned>(f, "nvmlDeviceGetClockInfo", handle_, memory_clock));
  state.memory_clock_max_mhz = as_int(ask<unsigned>(f, "nvmlDeviceGetMaxClockInfo", handle_, memory_clock));
  state.power_w = as_watts(ask<unsigned>(f, "nvmlDeviceGetPowerUsage", handle_));
  state.power_limit_w =
      as_watts(ask<unsigned>(f, {"nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementLimit"}, handle_));
  state.power_limit_default_w = as_watts(ask<unsigned>(f, "nvmlDeviceGetPowerManagementDefaultLimit", handle_));
  unsigned least = 0;
  if (const auto most = ask<unsigned>(f, "nvmlDeviceGetPowerManagementLimitConstraints", handle_, &least))
    state.power_limit_max_w = *most / 1e3;
  state.temperature_c = as_int(ask<unsigned>(f, "nvmlDeviceGetTemperature", handle_, gpu_temperature));
  state.throttle_reasons = throttle_reasons();
  unsigned current = 0;
  if (const auto pending = ask<unsigned>(f, "nvmlDeviceGetEccMode", handle_, &current)) {
    state.ecc = current != 0;
    state.ecc_pending = *pending != 0;
  }
  if (ask<unsigned>(f, "nvmlDeviceGetMigMode", handle_, &current)) state.mig_mode = current != 0;
  state.ecc_corrected = as_count(ask<unsigned long long>(f, "nvmlDeviceGetTotalEccErrors", handle_, corrected_error, since_load));
  state.ecc_uncorrected =
      as_count(ask<unsigned long long>(f, "nvmlDeviceGetTotalEccErrors", handle_, uncorrected_error, since_load));
  state.persistence = as_bool(ask<unsigned>(f, "nvmlDeviceGetPersistenceMode", handle_));
  state.compute_mode = as_int(ask<unsigned>(f, "nvmlDeviceGetComputeMode", handle_));
  state.pcie_generation = as_int(ask<unsigned>(f, "nvmlDeviceGetCurrPcieLinkGeneration", handle_));
  state.pcie_generation_max = as_int(ask<unsigned>(f, "nvmlDeviceGetMaxPcieLinkGeneration", handle_));
  state.pcie_width = as_int(ask<unsigned>(f, "nvmlDeviceGetCurrPcieLinkWidth", handle_));
  state.pcie_width_max = as_int(ask<unsigned>(f, "nvmlDeviceGetMaxPcieLinkWidth", handle_));
  if (const auto used = ask<Utilization>(f, "nvmlDeviceGetUtilizationRates", handle_))
    state.utilization_percent = static_cast<int>(used->gpu);
  if (const auto memory = ask<MemoryInfo>(f, "nvmlDeviceGetMemoryInfo", handle_)) state.memory_used_bytes = memory->used;
  state.energy_counter = energy_mj().has_value();
  state.processes = compute_processes();
  return state;
}

std::vector<NvLink> NvmlDevice::nvlinks(std::string& why_not) const {
  auto* const link_state = find<int(void*, unsigned, unsigned*)>(*symbol_, {"nvmlDeviceGetNvLinkState"});
  if (link_state == nullptr) {
    why_not = "this driver's NVML does not tell";
    return {};
  }
  constexpr unsigned most_links = 64;
  std::vector<NvLink> links;
  for (unsigned link = 0; link < most_links; ++link) {
    unsigned active = 0;
    const int status = link_state(handle_, link, &active);
    if (status == success) links.push_back(read_link(*symbol_, handle_, link, active != 0));
    // Links are numbered without gaps in what NVML accepts; among those, some may not exist on this board.
    else if (why_not.empty() || status != invalid_argument)
      why_not = status == not_supported ? "the driver reports no NVLink on this GPU"
                                        : "NVML does not tell: " + error_text(*symbol_, status);
    if (status == invalid_argument) break;
  }
  if (!links.empty()) why_not.clear();
  return links;
}

std::vector<int> NvmlDevice::nearest_cpus() const {
  constexpr unsigned bits = 8 * sizeof(unsigned long);
  std::array<unsigned long, 64> words{};
  std::vector<int> cpus;
  auto* const read = find<int(void*, unsigned, unsigned long*)>(*symbol_, {"nvmlDeviceGetCpuAffinity"});
  if (read == nullptr || read(handle_, static_cast<unsigned>(words.size()), words.data()) != success) return cpus;
  for (std::size_t i = 0; i < words.size(); ++i)
    for (unsigned bit = 0; bit < bits; ++bit)
      if ((words.at(i) >> bit & 1) != 0) cpus.push_back(static_cast<int>(i * bits + bit));
  return cpus;
}

std::optional<int> NvmlDevice::common_ancestor(const NvmlDevice& other) const {
  const auto level = ask<unsigned>(*symbol_, "nvmlDeviceGetTopologyCommonAncestor", handle_, other.handle_);
  return level ? std::optional{static_cast<int>(*level)} : std::nullopt;
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
