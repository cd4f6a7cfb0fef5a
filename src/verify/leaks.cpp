// SPDX-License-Identifier: Apache-2.0
#include "verify/leaks.hpp"

#include <fmt/format.h>
#include <malloc.h>
#include <aisp/check.hpp>

#include <cstdlib>

namespace aisp::verify {
namespace {

// Allocators round, keep caches and split blocks: less than this says nothing.
constexpr std::int64_t smallest_host_leak_bytes = 16 << 10;

// A memory checker keeps books of its own in this process's heap.
bool heap_is_ours() {
  static const bool ours = std::getenv("AISP_MEMORY_CHECKER") == nullptr;
  return ours;
}

}  // namespace

LeakWatch::Use LeakWatch::measure() const {
  Use use;
  const struct mallinfo2 info = mallinfo2();
  if (heap_is_ours()) use.host_bytes = static_cast<std::int64_t>(info.uordblks + info.hblkhd);
  if (on_gpu_) {
    std::size_t free_bytes = 0, total_bytes = 0;
    check(cudaMemGetInfo(&free_bytes, &total_bytes));
    use.device_bytes = static_cast<std::int64_t>(total_bytes - free_bytes);
  }
  return use;
}

void LeakWatch::before() { before_ = measure(); }

void LeakWatch::after() {
  const Use now = measure();
  growth_ = {now.device_bytes - before_.device_bytes, now.host_bytes - before_.host_bytes};
}

bool LeakWatch::grew() const { return growth_.device_bytes > 0 || growth_.host_bytes > smallest_host_leak_bytes; }

std::string LeakWatch::text() const {
  if (growth_.device_bytes > 0) return fmt::format("each run leaves {} bytes of device memory behind", growth_.device_bytes);
  return fmt::format("each run leaves {} bytes of host memory behind", growth_.host_bytes);
}

}  // namespace aisp::verify
