// SPDX-License-Identifier: Apache-2.0
#include "run/child/environment.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "base/build_info.hpp"
#include "base/system/files.hpp"
#include "base/text.hpp"
#include "machine/ceilings.hpp"
#include "machine/host.hpp"
#include "machine/machine.hpp"
#include "machine/needs.hpp"
#include "machine/nvml.hpp"
#include "peak/record.hpp"

namespace aisp::run {
namespace {

// Above this share of its floor a variant is limited by the floor's own resource.
constexpr double near_floor_percent = 80;

// Ceilings are the best measured rates, not the best possible ones, and clocks differ: but not by so much.
constexpr double most_percent_of_a_ceiling = 150;
constexpr double times_beyond_caches = 4;

void name_limit(evidence::Floor& floor, const evidence::GpuState& state) {
  if (machine::slows_down(state.throttle_reasons)) {
    floor.limit_from = evidence::LimitFrom::throttling;
    floor.held_back_by = fmt::format("{}, {} MHz", machine::throttle_text(state.throttle_reasons), state.sm_clock_mhz);
  } else if (floor.percent >= near_floor_percent) {
    floor.limit_from = evidence::LimitFrom::floor;
    floor.held_back_by = floor.limiter;
  }
}

// More than any processor's core does: cycles a second, FLOPs a cycle (two 512-bit multiply-adds in fp32), bytes a cycle to and
// from its first-level cache.
constexpr double host_cycles_s = 6e9, host_flops_cycle = 64, host_bytes_cycle = 192;

std::optional<std::string> impossible_on_host(const Cost& cost, double median_ms) {
  const double cycles_s = std::max(1u, std::thread::hardware_concurrency()) * host_cycles_s;
  double flops = 0;
  for (const MoreMath& each : machine::math_of(cost)) flops += each.flops;
  const double least_s = std::max(flops / (cycles_s * host_flops_cycle), cost.host_bytes / (cycles_s * host_bytes_cycle));
  if (median_ms >= least_s * 1e3) return std::nullopt;
  return fmt::format("{:.4g} ms is faster than {} CPUs can be: {:.4g} FLOP and {:.4g} bytes take {:.4g} ms at least", median_ms,
                     std::thread::hardware_concurrency(), flops, cost.host_bytes, least_s * 1e3);
}

void take_bytes_out(Cost& cost) {
  cost.bytes = 0;
  for (Cost& phase : cost.phases) take_bytes_out(phase);
}

}  // namespace

struct Environment::Machine {
  machine::Machine facts;
  std::optional<machine::NvmlDevice> nvml;  // of the first GPU
  std::vector<machine::NvmlDevice> nvml_devices;
  machine::Ceilings ceilings;
};

Environment::Environment(const std::vector<std::string>& uuids) : machine_{std::make_unique<Machine>()} {
  if (uuids.empty()) {
    machine_->facts.host = machine::read_host();
    machine_->ceilings = peak::best_known(machine_->facts.host);
    machine_->ceilings.host_cache_bytes = machine::last_level_cache_bytes();
    return;
  }
  // Set before the first CUDA call of this process, so that the pair sees its own GPUs and no others.
  setenv("CUDA_VISIBLE_DEVICES", base::join(uuids, ",").c_str(), 1);
  machine_->facts = machine::probe_here();
  // If CUDA was in use before, as inside another program, it still sees all GPUs.
  std::erase_if(machine_->facts.gpus, [&](const machine::Gpu& gpu) { return std::ranges::find(uuids, gpu.uuid) == uuids.end(); });
  for (const machine::Gpu& gpu : machine_->facts.gpus) ordinals_.push_back(gpu.ordinal);
  if (ordinals_.empty()) return;
  machine_->ceilings = peak::best_known(machine_->facts.gpus.front(), machine_->facts.driver_version, ordinals_.size() > 1);
  const machine::Ceilings host = peak::best_known(machine_->facts.host);
  machine_->ceilings.host_copy_bytes_s = host.host_copy_bytes_s;
  machine_->ceilings.from.host_copy = host.from.host_copy;
  machine_->ceilings.host_cache_bytes = machine::last_level_cache_bytes();
  const machine::Nvml& nvml = machine::Nvml::get();
  if (nvml.available()) machine_->nvml = nvml.device(machine_->facts.gpus.front().uuid);
  for (const machine::Gpu& gpu : machine_->facts.gpus)
    if (const auto device = nvml.device(gpu.uuid)) machine_->nvml_devices.push_back(*device);
  if (!machine_->nvml)
    lost_.push_back({evidence::LostKind::other, "no clock, power and temperature readings: " +
                                                    (nvml.available() ? "NVML does not know this GPU" : nvml.error())});
  lost_.push_back({evidence::LostKind::other, "no clock lock: clocks are left as they are"});
}

Environment::~Environment() = default;

std::optional<std::string> Environment::unmet(const Needs& needs, Device device) const {
  const auto unmet = machine::unmet(needs, device, machine_->facts, ordinals_, {}, base::build_info().cuda_architectures);
  return unmet ? std::optional{unmet->text()} : std::nullopt;
}

double Environment::memory_scale() const { return machine::memory_scale(machine_->facts, ordinals_); }

evidence::GpuState Environment::sample() const {
  if (!machine_->nvml) return {};
  const machine::GpuSample sample = machine_->nvml->sample().value_or(machine::GpuSample{});
  return {sample.sm_clock_mhz, sample.memory_clock_mhz, sample.power_w, sample.temperature_c, sample.throttle_reasons};
}

std::optional<std::uint64_t> Environment::own_device_bytes() const {
  if (!machine_->nvml) return std::nullopt;
  return machine_->nvml->memory_of_process(getpid());
}

std::optional<std::uint64_t> Environment::energy_mj() const {
  if (machine_->nvml_devices.empty() || machine_->nvml_devices.size() != ordinals_.size()) return std::nullopt;
  std::uint64_t sum = 0;
  for (const machine::NvmlDevice& device : machine_->nvml_devices) {
    const auto energy = device.energy_mj();
    if (!energy) return std::nullopt;
    sum += *energy;
  }
  return sum;
}

std::optional<evidence::ResultCeilings> Environment::ceilings(const std::vector<evidence::VariantResult>& variants) const {
  const machine::Ceilings& known = machine_->ceilings;
  evidence::ResultCeilings used{.source = known.source};
  for (const evidence::VariantResult& variant : variants) {
    if (variant.cost.bytes_of == evidence::ByteKind::device_memory) {
      used.memory_bytes_s = std::max(known.copy_bytes_s, known.read_bytes_s);
      used.memory_from = known.from.memory;
    }
    if (variant.cost.bytes_of == evidence::ByteKind::host_memory && machine::beyond_host_caches(variant.cost.bytes, known)) {
      used.memory_bytes_s = known.host_copy_bytes_s;
      used.memory_from = known.from.host_copy;
    }
    for (std::size_t i = 0; i < machine::math_kinds; ++i)
      if (machine::name_of(static_cast<Math>(i)) == variant.cost.math && known.flops_s[i] > 0) {
        used.flops_s[variant.cost.math] = known.flops_s[i];
        if (known.from.flops[i] != evidence::CeilingFrom::measured) used.flops_from[variant.cost.math] = known.from.flops[i];
      }
  }
  if (used.memory_bytes_s <= 0 && used.flops_s.empty()) return std::nullopt;
  return used;
}

std::optional<evidence::Floor> Environment::floor(const Cost& cost, double bytes_written, double median_ms,
                                                  const std::vector<evidence::GpuState>& states) const {
  const machine::FloorTime time = machine::floor_seconds(cost, machine_->ceilings, bytes_written);
  if (time.seconds <= 0) return std::nullopt;
  evidence::Floor floor{.milliseconds = time.seconds * 1e3,
                        .percent = median_ms > 0 ? time.seconds * 1e5 / median_ms : 0,
                        .limiter = time.limiter,
                        .ceiling = time.ceiling,
                        .source = machine_->ceilings.source,
                        .ceiling_from = time.from};
  // Takes the state in the middle of the run: in the first rounds the chip may still have been cool.
  name_limit(floor, states.empty() ? evidence::GpuState{} : states[states.size() / 2]);
  return floor;
}

std::optional<std::string> Environment::impossible(const Cost& cost, double median_ms, Cache cache) const {
  if (machine_->facts.gpus.empty()) return impossible_on_host(machine::whole(cost), median_ms);
  const machine::Gpu& gpu = machine_->facts.gpus.front();
  // A hot pair may find everything in L2.
  Cost counted = cost;
  if (cache == Cache::hot && machine::whole(cost).bytes <= static_cast<double>(gpu.l2_bytes)) take_bytes_out(counted);
  const machine::ImpossibleTime least = machine::impossible_seconds(counted, machine::theoretical_peaks(gpu), gpu.l2_bytes);
  if (median_ms >= least.seconds * 1e3) return std::nullopt;
  return fmt::format("{:.4g} ms is faster than this chip can be: {}", median_ms, least.arithmetic);
}

std::optional<std::string> Environment::above_ceiling(const Cost& cost, double bytes_written, double median_ms) const {
  Cost counted = cost;
  const bool in_l2 =
      !machine_->facts.gpus.empty() &&
      machine::whole(cost).bytes < times_beyond_caches * static_cast<double>(machine_->facts.gpus.front().l2_bytes);
  if (in_l2) take_bytes_out(counted);
  const machine::FloorTime least = machine::floor_seconds(counted, machine_->ceilings, bytes_written);
  const double percent = median_ms > 0 ? least.seconds * 1e5 / median_ms : 0;
  if (!(percent > most_percent_of_a_ceiling)) return std::nullopt;
  return fmt::format("{:.0f} % of {} ({}, {})", percent, least.limiter, least.ceiling, machine_->ceilings.source);
}

void move_home(const std::filesystem::path& folder) {
  for (const char* variable : {"HOME", "TMPDIR"}) {
    const std::filesystem::path own = folder / variable;
    base::make_directories(own);
    setenv(variable, own.c_str(), 1);
  }
  // Without them programs use folders below HOME.
  for (const char* variable : {"XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"}) unsetenv(variable);
}

void demand_deterministic_libraries() {
  // cuBLAS documents these two settings as giving the same bits with several streams at work.
  const char* own = std::getenv("CUBLAS_WORKSPACE_CONFIG");
  const std::string_view workspace = own != nullptr ? own : "";
  if (workspace != ":4096:8" && workspace != ":16:8") setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 1);
  // This variable silently replaces the math that a variant asks for.
  unsetenv("NVIDIA_TF32_OVERRIDE");
  unsetenv("CUBLAS_EMULATE_SINGLE_PRECISION");
}

}  // namespace aisp::run
