// SPDX-License-Identifier: Apache-2.0
#include "pair/launch_state.hpp"

#include <fmt/format.h>
#include <aisp/check.hpp>
#include <aisp/device_attribute.hpp>
#include <aisp/launch.hpp>

#include <array>
#include <map>
#include <mutex>
#include <utility>

namespace aisp {
namespace {

using KernelOnGpu = std::pair<const void*, int>;

// A launch in the runtime's form, checked against this GPU.
struct LaunchConfiguration {
  LaunchConfiguration(const void* kernel, const Grid& grid, cudaStream_t stream, bool in_clusters = false) {
    if (grid.shared_bytes > 0) allow_shared_memory(kernel, grid.shared_bytes);
    if (const unsigned blocks = grid.cluster.x * grid.cluster.y * grid.cluster.z; in_clusters || blocks > 1) {
      pair::demand_clusters(blocks, device_attribute(cudaDevAttrClusterLaunch) != 0);
      add(cudaLaunchAttributeClusterDimension).clusterDim = {grid.cluster.x, grid.cluster.y, grid.cluster.z};
    }
    if (grid.cooperative) add(cudaLaunchAttributeCooperative).cooperative = 1;
    if (grid.overlapping) add(cudaLaunchAttributeProgrammaticStreamSerialization).programmaticStreamSerializationAllowed = 1;
    raw.gridDim = grid.blocks;
    raw.blockDim = grid.threads;
    raw.dynamicSmemBytes = grid.shared_bytes;
    raw.stream = stream;
    raw.attrs = attributes.data();
  }
  LaunchConfiguration(const LaunchConfiguration&) = delete;  // raw points into this object
  LaunchConfiguration& operator=(const LaunchConfiguration&) = delete;

  cudaLaunchAttributeValue& add(cudaLaunchAttributeID id) {
    attributes.at(raw.numAttrs).id = id;
    return attributes.at(raw.numAttrs++).val;
  }

  std::array<cudaLaunchAttribute, 3> attributes{};
  cudaLaunchConfig_t raw{};
};

int current_gpu() {
  int gpu = 0;
  check(cudaGetDevice(&gpu));
  return gpu;
}

}  // namespace

void allow_shared_memory(const void* kernel, std::size_t bytes) {
  // Caches the shared memory allowed to each kernel on each GPU: asking the runtime takes as long as a launch.
  static std::mutex mutex;
  static std::map<KernelOnGpu, std::size_t> allowed;
  const std::scoped_lock lock{mutex};
  std::size_t& most = allowed[{kernel, current_gpu()}];
  if (bytes <= most) return;
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, kernel));
  if (bytes > static_cast<std::size_t>(attributes.maxDynamicSharedSizeBytes)) {
    const auto available = static_cast<std::size_t>(device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
    pair::demand_shared_memory(bytes + attributes.sharedSizeBytes, available);
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  }
  most = bytes;
}

int resident_clusters(const void* kernel, const Grid& grid) {
  const LaunchConfiguration configuration{kernel, grid, nullptr, true};
  int count = 0;
  check(cudaOccupancyMaxActiveClusters(&count, kernel, &configuration.raw));
  return count;
}

void detail::launch(const void* kernel, const Grid& grid, cudaStream_t stream, void** arguments) {
  const LaunchConfiguration configuration{kernel, grid, stream};
  check(cudaLaunchKernelExC(&configuration.raw, kernel, arguments));
}

}  // namespace aisp

namespace aisp::pair {

void demand_shared_memory(std::size_t needed, std::size_t available) {
  if (needed <= available) return;
  throw Unsupported{
      fmt::format("needs {} bytes of shared memory for one block, a block of this GPU can have {}", needed, available)};
}

void demand_clusters(unsigned blocks, bool has_clusters) {
  if (has_clusters) return;
  throw Unsupported{
      fmt::format("needs clusters of {} blocks, this GPU launches blocks one by one (clusters begin with sm_90)", blocks)};
}

LaunchState::~LaunchState() {
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
}

void LaunchState::tokens(std::span<const int> requests) {
  if (on_mark) on_mark("token");
  record({}, requests, stream);
}

void LaunchState::push_range(const char* name) {
  if (on_push_range) on_push_range(name);
}

void LaunchState::pop_range() {
  if (on_pop_range) on_pop_range();
}

void LaunchState::mark(const char* name, cudaStream_t on) {
  if (on_mark) on_mark(name);
  constexpr int no_request = 0;
  record(name, {&no_request, 1}, on);
}

void LaunchState::start_recording() {
  pending_.clear();
  recording_ = true;
  started_ = std::chrono::steady_clock::now();
}

void LaunchState::record(const char* name, std::span<const int> requests, cudaStream_t on) {
  if (!recording_) return;
  pending_.push_back({name != nullptr ? name : "", {requests.begin(), requests.end()}, std::chrono::steady_clock::now()});
  if (!on_gpu_) return;
  if (events_.size() < pending_.size()) {
    cudaEvent_t event = nullptr;
    check(cudaEventCreate(&event));
    events_.push_back(event);
  }
  check(cudaEventRecord(events_[pending_.size() - 1], on));
}

std::vector<Mark> LaunchState::stop_recording(cudaEvent_t start) {
  recording_ = false;
  std::vector<Mark> marks;
  std::size_t count = 0;
  for (const Pending& pending : pending_) count += pending.requests.size();
  marks.reserve(count);  // samples keep them
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    double at_ms = 0;
    if (on_gpu_) {
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, start, events_[i]));
      at_ms = milliseconds;
    } else {
      at_ms = std::chrono::duration<double, std::milli>(pending_[i].when - started_).count();
    }
    for (const int request : pending_[i].requests) marks.push_back({pending_[i].name, request, at_ms});
  }
  return marks;
}

}  // namespace aisp::pair
