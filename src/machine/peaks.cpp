// SPDX-License-Identifier: Apache-2.0
// Theoretical peaks: what no kernel can beat. They err upwards, so that no honest time is called impossible.
#include <algorithm>
#include <array>

#include "machine/ceilings.hpp"
#include "machine/gpu_specs.hpp"

namespace aisp::machine {
namespace {

struct Units {
  int sm;
  // Floating-point (int8: integer) operations per SM and clock, dense, a fused multiply-add counted as two; in the order of Math.
  std::array<double, math_kinds> per_clock;
};

// Of an SM: bytes from L2, instructions of its four schedulers, results of its special-function units (twice as many
// exponentials on sm_103).
constexpr double l2_bytes_per_clock = 64, issue_slots_per_clock = 4, special_functions_per_clock = 16;

//                            fp64 fp64t fp32  tf32  fp16   bf16   fp8    int8
constexpr std::array units = {
    Units{80, {64, 128, 128, 1024, 2048, 2048, 0, 4096}},     Units{86, {4, 4, 256, 512, 1024, 1024, 0, 2048}},
    Units{87, {4, 4, 256, 512, 1024, 1024, 0, 2048}},         Units{89, {4, 4, 256, 512, 1024, 1024, 2048, 2048}},
    Units{90, {128, 256, 256, 2048, 4096, 4096, 8192, 8192}}, Units{100, {128, 128, 256, 4096, 8192, 8192, 16384, 16384}},
    Units{103, {8, 8, 256, 4096, 8192, 8192, 16384, 2048}},   Units{110, {8, 8, 256, 4096, 8192, 8192, 16384, 16384}},
    Units{120, {4, 4, 256, 512, 1024, 1024, 2048, 2048}},     Units{121, {4, 4, 256, 512, 1024, 1024, 2048, 2048}},
};

const Units& units_of(int sm) {
  for (const Units& entry : units)
    if (entry.sm == sm) return entry;
  // An unknown chip is given the most of all, so that nothing honest is called impossible on it.
  return *std::find_if(units.begin(), units.end(), [](const Units& entry) { return entry.sm == 100; });
}

// NVLink to all peers together, one direction: the product's, else that of the chip's generation; 0 where there is none.
double nvlink_bytes_s(const GpuSpec* spec, int sm) {
  if (spec != nullptr && spec->link_bytes_s.known()) return spec->link_bytes_s.value / 2;
  if (sm == 80) return 300e9;
  if (sm == 86) return 56.25e9;
  if (sm == 90) return 450e9;
  if (sm == 100 || sm == 103) return 900e9;
  return 0;
}

// The CPU of a superchip reads the GPU's memory over NVLink-C2C; an integrated GPU shares the CPU's memory.
double host_link_bytes_s(const Gpu& gpu, double memory_bytes_s) {
  if (gpu.integrated) return memory_bytes_s;
  for (const std::string_view superchip : {"GH200", "GB200", "GB300", "GB10"})
    if (gpu.name.find(superchip) != std::string::npos) return 450e9;
  const bool told = gpu.condition && gpu.condition->pcie_generation_max && gpu.condition->pcie_width_max;
  if (told) return pcie_bytes_s(*gpu.condition->pcie_generation_max, *gpu.condition->pcie_width_max);
  return pcie_bytes_s(gpu.sm >= 100 ? 6 : gpu.sm >= 90 ? 5 : 4, 16);
}

}  // namespace

// PCI Express: transfers per second and lane times the line code's efficiency, in bytes and one direction.
double pcie_bytes_s(int generation, int width) {
  constexpr std::array per_lane = {0.25e9, 0.5e9, 0.985e9, 1.969e9, 3.938e9, 7.563e9};
  const int known = std::clamp(generation, 1, static_cast<int>(per_lane.size()));
  return per_lane[static_cast<std::size_t>(known - 1)] * width;
}

double memory_clock_bytes_s(const Gpu& gpu) {
  return static_cast<double>(gpu.memory_clock_khz) * 1e3 * 2 * gpu.memory_bus_bits / 8;
}

Peaks theoretical_peaks(const Gpu& gpu) {
  Peaks peaks;
  const GpuSpec* const spec = spec_of_reported(gpu.name);
  if (spec != nullptr) {
    peaks.memory_bytes_s = spec->memory_limit_bytes_s;
    peaks.memory_source = "datasheet";
  } else {
    peaks.memory_bytes_s = memory_clock_bytes_s(gpu);
    peaks.memory_source = "memory clock x bus width";
  }
  const double sm_clocks_s = static_cast<double>(gpu.sm_count) * gpu.clock_khz * 1e3;
  for (std::size_t i = 0; i < math_kinds; ++i) peaks.flops_s[i] = units_of(gpu.sm).per_clock[i] * sm_clocks_s;
  peaks.l2_bytes_s = l2_bytes_per_clock * sm_clocks_s;
  peaks.wavefronts_s = sm_clocks_s;
  peaks.issue_slots_s = issue_slots_per_clock * sm_clocks_s;
  peaks.special_functions_s = (gpu.sm == 103 ? 2 : 1) * special_functions_per_clock * sm_clocks_s;
  peaks.pcie_bytes_s = host_link_bytes_s(gpu, peaks.memory_bytes_s);
  peaks.peer_bytes_s = std::max(nvlink_bytes_s(spec, gpu.sm), peaks.pcie_bytes_s);
  return peaks;
}

}  // namespace aisp::machine
