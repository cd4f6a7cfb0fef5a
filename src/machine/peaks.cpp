// SPDX-License-Identifier: Apache-2.0
// Theoretical peaks: what no kernel can beat. They err upwards, so that no honest time is called impossible.
#include <algorithm>
#include <array>

#include "machine/ceilings.hpp"
#include "machine/chips.hpp"
#include "machine/gpu_specs.hpp"

namespace aisp::machine {
namespace {

// NVLink to all peers together, one direction: the product's, else that of the chip's generation; 0 where there is none.
double nvlink_bytes_s(const GpuSpec* spec, const Chip& chip) {
  return spec != nullptr && spec->link_bytes_s.known() ? spec->link_bytes_s.value / 2 : chip.nvlink_bytes_s;
}

// The CPU of a superchip reads the GPU's memory over NVLink-C2C; an integrated GPU shares the CPU's memory.
double host_link_bytes_s(const Gpu& gpu, const GpuSpec* spec, double memory_bytes_s) {
  if (gpu.integrated) return memory_bytes_s;
  if (spec != nullptr && spec->cpu_link_bytes_s > 0) return spec->cpu_link_bytes_s;
  const bool told = gpu.condition && gpu.condition->pcie_generation_max && gpu.condition->pcie_width_max;
  if (told) return pcie_bytes_s(*gpu.condition->pcie_generation_max, *gpu.condition->pcie_width_max);
  return pcie_bytes_s(chip_of(gpu.sm).pcie_generation, 16);
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
  // Sheets round down at times: an H200's clock and bus give 4.92 TB/s, its sheet says 4.8.
  const double clocked_bytes_s = memory_clock_bytes_s(gpu);
  peaks.datasheet_bytes_s = spec != nullptr ? spec->memory_limit_bytes_s : 0;
  peaks.memory_bytes_s = std::max(peaks.datasheet_bytes_s, clocked_bytes_s);
  peaks.memory_source = spec != nullptr && peaks.datasheet_bytes_s >= clocked_bytes_s ? "datasheet" : "memory clock x bus width";
  const double sm_clocks_s = static_cast<double>(gpu.sm_count) * gpu.clock_khz * 1e3;
  const Chip chip = chip_of(gpu.sm);
  for (std::size_t i = 0; i < math_kinds; ++i) peaks.flops_s[i] = chip.per_clock[i] * sm_clocks_s;
  peaks.l2_bytes_s = l2_bytes_per_clock * sm_clocks_s;
  peaks.wavefronts_s = sm_clocks_s;
  peaks.issue_slots_s = issue_slots_per_clock * sm_clocks_s;
  peaks.special_functions_s = chip.special_functions_per_clock * sm_clocks_s;
  peaks.pcie_bytes_s = host_link_bytes_s(gpu, spec, peaks.memory_bytes_s);
  peaks.peer_bytes_s = std::max(nvlink_bytes_s(spec, chip), peaks.pcie_bytes_s);
  return peaks;
}

}  // namespace aisp::machine
