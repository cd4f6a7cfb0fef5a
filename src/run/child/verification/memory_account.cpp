// SPDX-License-Identifier: Apache-2.0
#include "run/child/verification/memory_account.hpp"

#include <fmt/format.h>
#include <aisp/check.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "base/system/places.hpp"
#include "base/system/process_memory.hpp"
#include "base/text.hpp"
#include "measure/execution.hpp"
#include "pair/all_variants.hpp"
#include "pair/memory/memory.hpp"

namespace aisp::run {
namespace {

// The driver gives memory out in pages of 2 MiB, and puts small allocations together in them.
constexpr std::uint64_t granularity_bytes = std::uint64_t{2} << 20;
// The code that a first launch loads, its constants and its stacks.
constexpr std::uint64_t code_bytes = std::uint64_t{32} << 20;

std::string text_of(std::uint64_t bytes) { return base::human_bytes(static_cast<double>(bytes)); }

bool uses_libraries(const Pair& pair) {
  const auto any = [](const Needs& needs) {
    return std::ranges::any_of(needs.libraries, [](Library library) { return library != Library::none; });
  };
  return any(pair.needs) ||
         std::ranges::any_of(pair::all_variants(pair), [&](const Variant* variant) { return any(variant->needs); });
}

}  // namespace

std::uint64_t free_device_bytes(const std::vector<int>& gpus) {
  std::uint64_t sum = 0;
  for (const int gpu : gpus) {
    std::size_t free_bytes = 0, total_bytes = 0;
    check(cudaSetDevice(gpu));
    check(cudaMemGetInfo(&free_bytes, &total_bytes));
    sum += free_bytes;
  }
  if (!gpus.empty()) check(cudaSetDevice(gpus.front()));
  return sum;
}

evidence::MemoryUse memory_of(pair::Session& session, const Variant& variant, Start start, std::uint64_t free_before,
                              bool& host_peak_is_own) {
  const std::vector<int>& gpus = session.gpu_ordinals();
  if (session.on_gpu()) pair::reset_pool_marks(gpus);
  host_peak_is_own = base::reset_peak_resident();
  session.reset(variant);
  measure::submit_behind_gate(session, variant, start, std::chrono::seconds{1});
  evidence::MemoryUse use{.host_peak_rss_bytes = base::peak_resident_bytes()};
  if (!session.on_gpu()) return use;
  const pair::PoolUse pools = pair::pool_use(gpus);
  const std::uint64_t free_now = free_device_bytes(gpus);
  use.device_allocated_bytes = session.device_bytes();
  use.device_peak_bytes = use.device_allocated_bytes + pools.most_used_bytes;
  use.device_reserved_bytes = use.device_allocated_bytes + pools.most_reserved_bytes;
  use.device_driver_bytes = free_before > free_now ? free_before - free_now : 0;
  return use;
}

void add_own_allocations(evidence::MemoryUse& use, std::uint64_t most_bytes) {
  use.device_peak_bytes = std::max(use.device_peak_bytes, use.device_allocated_bytes + most_bytes);
  use.device_reserved_bytes = std::max(use.device_reserved_bytes, use.device_peak_bytes);
}

std::string disagreement(const evidence::MemoryUse& use, std::size_t allocations) {
  const std::uint64_t slack = code_bytes + allocations * granularity_bytes;
  const std::uint64_t driver = use.device_driver_bytes;
  if (driver > use.device_reserved_bytes + slack)
    return fmt::format("memory: the driver's account says {}, buffers and pools {}: {} were allocated beside them",
                       text_of(driver), text_of(use.device_reserved_bytes), text_of(driver - use.device_reserved_bytes));
  if (driver + slack < use.device_allocated_bytes)
    return fmt::format("memory: the driver's account says {}, the buffers alone hold {}: another process freed memory meanwhile",
                       text_of(driver), text_of(use.device_allocated_bytes));
  return {};
}

void account_memory(const Context& context, Record& record, pair::Session& session, Start start, std::uint64_t free_before) {
  std::string apart;
  for (const Variant* variant : record.active()) {
    bool host_peak_is_own = false;
    evidence::VariantResult& result = record.of(variant->name);
    result.memory = memory_of(session, *variant, start, free_before, host_peak_is_own);
    if (!host_peak_is_own && variant == &context.pair.baseline)
      record.lose(evidence::LostKind::other, "no peak of host memory per variant, only of all: this kernel does not reset it");
    // Code that one variant loads stays for the next, so the last says it all.
    if (session.on_gpu()) apart = disagreement(result.memory, session.buffers().size());
  }
  // Inside another program, its allocators contribute to the difference.
  if (!apart.empty() && !uses_libraries(context.pair) && !base::embedded()) record.warn(std::move(apart));
}

}  // namespace aisp::run
