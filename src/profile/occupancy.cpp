// SPDX-License-Identifier: Apache-2.0
#include "profile/occupancy.hpp"

#include <aisp/check.hpp>

#include <algorithm>
#include <array>
#include <climits>
#include <utility>

namespace aisp::profile {
namespace {

// The same from compute capability 7.0 on: registers are given to warps in units of 256, in each of the SM's four parts by
// itself; shared memory is given to blocks in units of 128 bytes.
constexpr int warp_threads = 32;
constexpr int register_unit = 256;
constexpr int sm_parts = 4;
constexpr std::uint64_t shared_unit_bytes = 128;

template <class T>
T rounded_up(T value, T unit) {
  return (value + unit - 1) / unit * unit;
}

int by_registers(const LaunchResources& launch, int warps_per_block, const SmLimits& sm) {
  if (launch.registers_per_thread <= 0) return INT_MAX;
  const int registers_per_warp = rounded_up(launch.registers_per_thread * warp_threads, register_unit);
  const int warps = sm.registers / sm_parts / registers_per_warp * sm_parts;
  return warps / warps_per_block;
}

int by_shared_memory(const LaunchResources& launch, const SmLimits& sm) {
  const std::uint64_t bytes =
      rounded_up(launch.static_shared_bytes + launch.dynamic_shared_bytes + sm.reserved_bytes_per_block, shared_unit_bytes);
  return bytes == 0 ? INT_MAX : static_cast<int>(sm.shared_bytes / bytes);
}

}  // namespace

SmLimits sm_limits(int cuda_ordinal) {
  const auto read = [&](cudaDeviceAttr attribute) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, attribute, cuda_ordinal));
    return value;
  };
  return {.sm_count = read(cudaDevAttrMultiProcessorCount),
          .warps = read(cudaDevAttrMaxThreadsPerMultiProcessor) / warp_threads,
          .blocks = read(cudaDevAttrMaxBlocksPerMultiprocessor),
          .registers = read(cudaDevAttrMaxRegistersPerMultiprocessor),
          .shared_bytes = static_cast<std::uint64_t>(read(cudaDevAttrMaxSharedMemoryPerMultiprocessor)),
          .reserved_bytes_per_block = static_cast<std::uint64_t>(read(cudaDevAttrReservedSharedMemoryPerBlock))};
}

Occupancy occupancy(const LaunchResources& launch, const SmLimits& sm) {
  if (launch.threads_per_block <= 0 || sm.warps <= 0) return {};
  const int warps_per_block = rounded_up(launch.threads_per_block, warp_threads) / warp_threads;
  const std::array<std::pair<int, const char*>, 4> limits{{{sm.warps / warps_per_block, "warps"},
                                                           {sm.blocks, "blocks"},
                                                           {by_registers(launch, warps_per_block, sm), "registers"},
                                                           {by_shared_memory(launch, sm), "shared memory"}}};
  const auto* least =
      std::min_element(limits.begin(), limits.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return {.blocks = least->first, .percent = 100.0 * least->first * warps_per_block / sm.warps, .limit = least->second};
}

}  // namespace aisp::profile
