// SPDX-License-Identifier: Apache-2.0
#include "profile/recording.hpp"

#include <aisp/check.hpp>

#include <algorithm>
#include <array>
#include <climits>
#include <set>
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

using evidence::CallProfile;
using evidence::CopyProfile;
using evidence::KernelProfile;
using evidence::Profile;
using Kind = Activity::Kind;

double milliseconds(std::uint64_t ns) { return static_cast<double>(ns) / 1e6; }
std::uint64_t duration_ns(const Activity& activity) { return activity.end_ns - activity.start_ns; }

std::vector<int> listed(const std::array<int, 3>& sizes) { return {sizes.begin(), sizes.end()}; }

int product(const std::array<int, 3>& sizes) { return sizes[0] * sizes[1] * sizes[2]; }
double blocks_of(const std::array<int, 3>& grid) { return 1.0 * grid[0] * grid[1] * grid[2]; }

struct Launches {  // of one kernel with one block and one set of resources
  std::vector<const Activity*> all;
  std::set<std::array<int, 3>> grids;
  std::uint64_t total_ns = 0;
};

void fill_occupancy(KernelProfile& kernel, const Activity& launch, const std::map<int, SmLimits>& limits) {
  const auto known = limits.find(launch.device);
  if (known == limits.end()) return;
  const KernelShape& shape = launch.shape;
  const Occupancy found = occupancy({.threads_per_block = product(shape.block),
                                     .registers_per_thread = shape.registers,
                                     .static_shared_bytes = shape.static_shared_bytes,
                                     .dynamic_shared_bytes = shape.dynamic_shared_bytes},
                                    known->second);
  if (found.blocks == 0) return;
  kernel.occupancy_percent = found.percent;
  kernel.occupancy_limit = found.limit;
  kernel.waves = blocks_of(shape.grid) / (1.0 * found.blocks * known->second.sm_count);
}

KernelProfile profile_of(const Launches& launches, const std::map<int, SmLimits>& limits) {
  const Activity& longest =
      **std::max_element(launches.all.begin(), launches.all.end(),
                         [](const Activity* a, const Activity* b) { return duration_ns(*a) < duration_ns(*b); });
  const KernelShape& shape = longest.shape;
  KernelProfile kernel;
  kernel.name = short_name(demangled(longest.name));
  kernel.count = launches.all.size();
  kernel.total_ms = milliseconds(launches.total_ns);
  kernel.mean_ms = kernel.total_ms / static_cast<double>(kernel.count);
  kernel.grid = listed(shape.grid);
  kernel.grids = launches.grids.size();
  kernel.block = listed(shape.block);
  if (product(shape.cluster) > 1) kernel.cluster = listed(shape.cluster);
  kernel.registers = shape.registers;
  kernel.static_shared_bytes = shape.static_shared_bytes;
  kernel.dynamic_shared_bytes = shape.dynamic_shared_bytes;
  kernel.local_bytes = shape.local_bytes;
  fill_occupancy(kernel, longest, limits);
  return kernel;
}

std::vector<KernelProfile> kernels_of(const Recording& recording, const std::map<int, SmLimits>& limits) {
  using Key = std::tuple<std::string, std::array<int, 3>, std::array<int, 3>, int, std::uint64_t, std::uint64_t>;
  std::map<Key, Launches> groups;
  std::uint64_t all_ns = 0;
  for (const Activity& activity : recording.activities) {
    if (activity.kind != Kind::kernel) continue;
    const KernelShape& shape = activity.shape;
    Launches& group = groups[{activity.name, shape.block, shape.cluster, shape.registers, shape.static_shared_bytes,
                              shape.dynamic_shared_bytes}];
    group.all.push_back(&activity);
    group.grids.insert(shape.grid);
    group.total_ns += duration_ns(activity);
    all_ns += duration_ns(activity);
  }
  std::vector<KernelProfile> kernels;
  for (const auto& [key, launches] : groups) {
    kernels.push_back(profile_of(launches, limits));
    if (all_ns > 0) kernels.back().share_percent = 100.0 * static_cast<double>(launches.total_ns) / static_cast<double>(all_ns);
  }
  std::stable_sort(kernels.begin(), kernels.end(),
                   [](const KernelProfile& a, const KernelProfile& b) { return a.total_ms > b.total_ms; });
  return kernels;
}

std::vector<CopyProfile> copies_of(const Recording& recording) {
  std::map<std::string, std::vector<Activity>> by_direction;
  for (const Activity& activity : recording.activities)
    if (activity.kind == Kind::memcpy) by_direction[activity.name].push_back(activity);
  std::vector<CopyProfile> copies;
  for (const auto& [direction, all] : by_direction) {
    CopyProfile& copy = copies.emplace_back();
    copy.direction = direction;
    copy.count = all.size();
    for (const Activity& one : all) copy.bytes += static_cast<double>(one.bytes);
    copy.total_ms = milliseconds(total_ns(covered(all, Kind::memcpy)));
    if (copy.total_ms > 0) copy.bytes_per_second = copy.bytes / (copy.total_ms / 1e3);
  }
  std::stable_sort(copies.begin(), copies.end(),
                   [](const CopyProfile& a, const CopyProfile& b) { return a.total_ms > b.total_ms; });
  return copies;
}

std::vector<CallProfile> by_name(const std::vector<Activity>& activities) {
  std::map<std::string, CallProfile> groups;
  for (const Activity& activity : activities) {
    CallProfile& group = groups[activity.name];
    group.name = activity.name;
    ++group.count;
    group.total_ms += milliseconds(duration_ns(activity));
  }
  std::vector<CallProfile> calls;
  for (auto& [name, call] : groups) calls.push_back(std::move(call));
  std::stable_sort(calls.begin(), calls.end(),
                   [](const CallProfile& a, const CallProfile& b) { return a.total_ms > b.total_ms; });
  return calls;
}

void fill_gaps(Profile& profile, const Recording& recording, const Stretches& busy) {
  const std::uint64_t begin_ns = recording.frame_begin_ns, end_ns = recording.frame_end_ns;
  if (end_ns <= begin_ns) return;
  std::uint64_t idle_ns = 0, longest_ns = 0, free_from_ns = begin_ns;
  const auto gap = [&](std::uint64_t until_ns) {
    if (until_ns <= free_from_ns) return;
    ++profile.gaps;
    idle_ns += until_ns - free_from_ns;
    longest_ns = std::max(longest_ns, until_ns - free_from_ns);
  };
  for (const Stretch& stretch : busy) {
    gap(std::min(stretch.start_ns, end_ns));
    free_from_ns = std::max(free_from_ns, stretch.end_ns);
  }
  gap(end_ns);
  profile.span_ms = milliseconds(end_ns - begin_ns);
  profile.longest_gap_ms = milliseconds(longest_ns);
  profile.idle_percent = 100.0 * static_cast<double>(idle_ns) / static_cast<double>(end_ns - begin_ns);
}

void fill_device_part(Profile& profile, const Recording& recording, const std::map<int, SmLimits>& limits) {
  const Stretches kernels = covered(recording.activities, Kind::kernel), copies = covered(recording.activities, Kind::memcpy);
  Stretches busy = covered(recording.activities, Kind::memset);
  busy.insert(busy.end(), kernels.begin(), kernels.end());
  busy.insert(busy.end(), copies.begin(), copies.end());
  busy = united(std::move(busy));
  profile.busy_ms = milliseconds(total_ns(busy));
  profile.kernel_ms = milliseconds(total_ns(kernels));
  profile.copy_ms = milliseconds(total_ns(copies));
  if (profile.copy_ms > 0) profile.overlap_percent = 100 * milliseconds(common_ns(copies, kernels)) / profile.copy_ms;
  fill_gaps(profile, recording, busy);
  profile.kernels = kernels_of(recording, limits);
  profile.copies = copies_of(recording);
  for (const Activity& activity : recording.activities) {
    profile.launches += activity.kind == Kind::kernel;
    if (activity.kind != Kind::memset) continue;
    ++profile.memsets.count;
    profile.memsets.bytes += static_cast<double>(activity.bytes);
    profile.memsets.total_ms += milliseconds(duration_ns(activity));
  }
}

void fill_host_part(Profile& profile, const Recording& recording) {
  profile.host_ms = milliseconds(recording.host_end_ns - recording.host_begin_ns);
  const std::vector<Activity> calls = outermost_calls(recording);
  for (const Activity& call : calls) {
    if (!is_launch(call)) continue;
    ++profile.launch_calls;
    profile.launch_ms += milliseconds(duration_ns(call));
  }
  profile.calls = by_name(calls);
  std::vector<Activity> waits, allocated;
  for (const Activity& activity : recording.activities) {
    if (activity.start_ns < recording.host_begin_ns || activity.start_ns > recording.host_end_ns) continue;
    if (activity.kind == Kind::wait) waits.push_back(activity);
    if (activity.kind != Kind::memory) continue;
    profile.allocations += !activity.freed;
    allocated.push_back(activity);
  }
  profile.synchronizations = by_name(waits);
  profile.peak_allocated_bytes = static_cast<double>(most_allocated_bytes(allocated));
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

void shorten_to_timed(Profile& profile, double timed_ms) {
  if (timed_ms <= 0 || profile.span_ms <= timed_ms) return;
  profile.span_ms = timed_ms;
  for (double* part : {&profile.busy_ms, &profile.kernel_ms, &profile.copy_ms}) *part = std::min(*part, timed_ms);
  const double idle_ms = timed_ms - profile.busy_ms;
  profile.idle_percent = 100 * idle_ms / timed_ms;
  profile.longest_gap_ms = std::min(profile.longest_gap_ms, idle_ms);
  if (idle_ms <= 0) profile.gaps = 0;
}

Profile summarize(const Recording& device, const Recording& everything, const std::map<int, SmLimits>& limits) {
  Profile profile;
  fill_device_part(profile, device, limits);
  fill_host_part(profile, everything);
  return profile;
}

}  // namespace aisp::profile
