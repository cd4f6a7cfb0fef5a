// SPDX-License-Identifier: Apache-2.0
#include "verify/leaks.hpp"

#include <fmt/format.h>
#include <malloc.h>
#include <aisp/check.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "base/math/statistics.hpp"
#include "base/system/process_memory.hpp"
#include "base/text.hpp"
#include "measure/gpu_kernels.hpp"
#include "pair/memory/memory.hpp"

// Only there in a build under the address sanitizer, of whose heap the C library knows nothing.
// NOLINTNEXTLINE(clang-diagnostic-reserved-identifier): the sanitizer chose the name.
extern "C" __attribute__((weak)) std::size_t __sanitizer_get_current_allocated_bytes();

namespace aisp::verify {
namespace {

// Allocators round, keep caches and split blocks: less than this is no evidence.
constexpr std::int64_t smallest_host_leak_bytes = 16 << 10;

// The most of one run's blocks that the caches of glibc's threads may keep, seven of a size for each thread.
constexpr std::int64_t most_kept_by_threads_bytes = 1 << 20;

// The most that a run's launches leave at 32 bytes each: 128 thousand launches, which keep the host busy for half a second.
constexpr std::int64_t most_kept_of_launches_bytes = 4 << 20;

constexpr std::int64_t pool_rounding_bytes = 512, driver_rounding_bytes = 2 << 20, host_rounding_bytes = 4 << 10;

// ", as much as output 1 takes": most leaks are copies of something. Names all buffers of that size.
std::string as_large_as(const pair::Session& session, std::int64_t bytes, std::int64_t rounded_to) {
  std::vector<std::string> names;
  for (const Buffer& buffer : session.buffers()) {
    const auto size = static_cast<std::int64_t>(buffer.bytes());
    if (size > 0 && bytes >= size && bytes < size + rounded_to) names.push_back(buffer.name);
  }
  return names.empty() ? std::string{} : fmt::format(", as much as {} takes", base::join(names, " or "));
}

std::int64_t heap_bytes() {
  if (__sanitizer_get_current_allocated_bytes != nullptr)
    return static_cast<std::int64_t>(__sanitizer_get_current_allocated_bytes());
  const struct mallinfo2 info = mallinfo2();
  return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
}

// Returns the heap's growth if each round had left as much as the median round.
std::int64_t growth_of_most_rounds(const std::vector<std::int64_t>& heap, std::int64_t growth) {
  if (heap.size() < 3) return growth;
  std::vector<double> steps;
  for (std::size_t i = 1; i < heap.size(); ++i) steps.push_back(static_cast<double>(heap[i] - heap[i - 1]));
  return static_cast<std::int64_t>(base::median(steps)) * static_cast<std::int64_t>(steps.size());
}

}  // namespace

LeakWatch::Use LeakWatch::measure() const {
  Use use;
  if (!base::under_memory_checker()) use.host_bytes = heap_bytes() - kept_bytes_;
  if (session_.on_gpu()) {
    for (const int gpu : session_.gpu_ordinals()) {
      std::size_t free_bytes = 0, total_bytes = 0;
      check(cudaSetDevice(gpu));
      check(cudaMemGetInfo(&free_bytes, &total_bytes));
      if (!base::under_memory_checker()) use.device_bytes += static_cast<std::int64_t>(total_bytes - free_bytes);
    }
    check(cudaSetDevice(session_.gpu_ordinals().front()));
    if (own_device_bytes_ && session_.gpu_ordinals().size() == 1) use.own_device_bytes = own_device_bytes_();
    use.pool_bytes = static_cast<std::int64_t>(pair::pool_use(session_.gpu_ordinals()).used_bytes);
  }
  return use;
}

void LeakWatch::before() {
  before_ = measure();
  heap_of_rounds_.assign(1, before_.host_bytes);
}

void LeakWatch::round_ended() {
  if (!base::under_memory_checker()) heap_of_rounds_.push_back(heap_bytes() - kept_bytes_);
}

void LeakWatch::after() {
  const Use now = measure();
  std::int64_t device_growth = now.device_bytes - before_.device_bytes;
  // Memory that other processes took meanwhile does not count against the pair.
  if (now.own_device_bytes && before_.own_device_bytes)
    device_growth = std::min(device_growth, *now.own_device_bytes - *before_.own_device_bytes);
  growth_ = {.device_bytes = device_growth,
             .pool_bytes = now.pool_bytes - before_.pool_bytes,
             .host_bytes = now.host_bytes - before_.host_bytes};
}

// Whether launches outside graphs leave memory: once CUPTI (13.0) has recorded, it keeps 32 bytes of each for good.
bool LeakWatch::launches_leave_memory() const {
  constexpr int launches = 256;
  constexpr std::int64_t least_each_bytes = 8;
  if (!session_.on_gpu()) return false;
  const std::int64_t before = heap_bytes();
  for (int i = 0; i < launches; ++i) measure::launch_sample_begin(session_.launch().stream);
  check(cudaStreamSynchronize(session_.launch().stream));
  return heap_bytes() - before >= launches * least_each_bytes;
}

bool LeakWatch::grew() const {
  if (growth_.device_bytes > 0 || growth_.pool_bytes > 0) return true;
  if (growth_.host_bytes <= smallest_host_leak_bytes) return false;
  return growth_.host_bytes > most_kept_of_launches_bytes || !launches_leave_memory();
}

bool LeakWatch::threads_may_keep_it() const {
  return growth_.device_bytes <= 0 && growth_.pool_bytes <= 0 && growth_.host_bytes <= most_kept_by_threads_bytes;
}

std::string LeakWatch::text_of_each(std::size_t runs) {
  // Memory that drivers take for themselves in a while.
  constexpr std::int64_t drivers_own_bytes = std::int64_t{64} << 20, harness_own_bytes = std::int64_t{256} << 10;
  if (runs == 0 || base::under_memory_checker()) return {};
  const auto each = static_cast<std::int64_t>(runs);
  const auto kept_bytes = drivers_own_bytes + static_cast<std::int64_t>(session_.kept_by_makers_of_inputs());
  growth_ = {.device_bytes = growth_.device_bytes > kept_bytes ? growth_.device_bytes / each : 0,
             .pool_bytes = growth_.pool_bytes / each,
             .host_bytes = growth_of_most_rounds(heap_of_rounds_, growth_.host_bytes) / each};
  const bool left =
      growth_.device_bytes > 0 || growth_.pool_bytes > pool_rounding_bytes || growth_.host_bytes > harness_own_bytes;
  return left ? text() : std::string{};
}

std::string LeakWatch::text() const {
  const auto left = [&](std::int64_t bytes, const char* of, std::int64_t rounded_to) {
    return fmt::format("each run leaves {} bytes ({}) of {} behind{}", bytes, base::human_bytes(static_cast<double>(bytes)), of,
                       as_large_as(session_, bytes, rounded_to));
  };
  if (growth_.pool_bytes > 0) return left(growth_.pool_bytes, "cudaMallocAsync's pool", pool_rounding_bytes);
  if (growth_.device_bytes > 0) return left(growth_.device_bytes, "device memory", driver_rounding_bytes);
  return left(growth_.host_bytes, "host memory", host_rounding_bytes);
}

}  // namespace aisp::verify
