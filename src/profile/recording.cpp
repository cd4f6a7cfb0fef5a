// SPDX-License-Identifier: Apache-2.0
#include "profile/recording.hpp"

#include <aisp/check.hpp>

#include <algorithm>
#include <array>
#include <climits>
#include <utility>

#include "profile/audit.hpp"

namespace aisp::profile {
namespace {

// CUPTI asks for each kernel's name so.
constexpr const char* cupti_own_call = "cuKernelGetName";

bool on_gpu(const Activity& activity) {
  return activity.kind == Activity::Kind::kernel || activity.kind == Activity::Kind::memcpy ||
         activity.kind == Activity::Kind::memset;
}

bool is(const Activity& activity, const char* marker) { return activity.own && activity.name.find(marker) != std::string::npos; }

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

Recording framed(std::vector<Activity> activities, bool from_first_work) {
  Recording recording;
  std::uint64_t first_ns = 0, last_ns = 0;
  for (Activity& activity : activities) {
    if (is(activity, begin_marker)) {
      recording.frame_begin_ns = activity.end_ns;
    } else if (is(activity, end_marker)) {
      recording.frame_end_ns = activity.start_ns;
    } else {
      if (on_gpu(activity)) {
        first_ns = first_ns == 0 ? activity.start_ns : std::min(first_ns, activity.start_ns);
        last_ns = std::max(last_ns, activity.end_ns);
      }
      recording.activities.push_back(std::move(activity));
    }
  }
  const bool has_frame = recording.frame_begin_ns > 0 && recording.frame_end_ns > recording.frame_begin_ns;
  if (from_first_work || !has_frame) {
    recording.frame_begin_ns = first_ns;
    recording.frame_end_ns = last_ns;
  }
  return recording;
}

std::vector<Activity> outermost_calls(const Recording& recording) {
  std::vector<Activity> calls;
  for (const Activity& activity : recording.activities) {
    const bool inside = activity.start_ns >= recording.host_begin_ns && activity.start_ns <= recording.host_end_ns;
    if (activity.kind == Activity::Kind::call && inside && activity.name != cupti_own_call) calls.push_back(activity);
  }
  std::sort(calls.begin(), calls.end(), [](const Activity& a, const Activity& b) {
    if (a.thread != b.thread) return a.thread < b.thread;
    return a.start_ns != b.start_ns ? a.start_ns < b.start_ns : a.end_ns > b.end_ns;
  });
  std::vector<Activity> outer;
  for (Activity& call : calls)
    if (outer.empty() || outer.back().thread != call.thread || call.start_ns >= outer.back().end_ns)
      outer.push_back(std::move(call));
  std::stable_sort(outer.begin(), outer.end(), [](const Activity& a, const Activity& b) { return a.start_ns < b.start_ns; });
  return outer;
}

bool is_launch(const Activity& call) {
  return call.name.find("Launch") != std::string::npos && call.name.find("HostFunc") == std::string::npos;
}

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
