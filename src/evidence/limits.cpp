// SPDX-License-Identifier: Apache-2.0
#include "evidence/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace aisp::evidence {
namespace {

// Nsight Compute's rule too: a kernel that uses neither the SM nor memory for more than this waits most of the time.
constexpr double busy_unit_percent = 60;
// Below this the GPU waits for the host, or for the next launch.
constexpr double busy_gpu_percent = 80;
// Larger than the difference between declaration and counters for a kernel with minimal traffic.
constexpr double more_traffic = 1.25;

std::string memory_limit(const Counters& counters, const DeclaredCost& cost) {
  const std::optional<double> moved = dram_bytes(counters);
  if (!moved || cost.bytes_of != ByteKind::device_memory || !(cost.bytes > 0)) return "memory";
  const double times = *moved / cost.bytes;
  if (!std::isfinite(times) || times < more_traffic) return "memory";
  return fmt::format("memory: {:.1f}x the bytes that must move", times);
}

std::string limit_of(const PairResult& pair, const VariantResult& variant, const Counters* counters) {
  if (counters != nullptr && counters->sm_throughput_percent && counters->memory_throughput_percent) {
    const double sm = *counters->sm_throughput_percent, memory = *counters->memory_throughput_percent;
    if (std::max(sm, memory) >= busy_unit_percent)
      return memory >= sm ? memory_limit(*counters, variant.cost) : "instructions of the SM";
  }
  if (const auto busy = gpu_busy_percent(variant); busy && *busy < busy_gpu_percent) return "launches and waits";
  // Neither a unit of the chip nor the host is busy, so dependences must be the limit.
  const bool nothing_busy = counters != nullptr && counters->sm_throughput_percent;
  return nothing_busy || pair.bound == Bound::latency ? "latency" : "latency or extra work";
}

}  // namespace

void name_limits(PairResult& pair) {
  for (VariantResult& variant : pair.variants) {
    if (!variant.floor || !variant.timing) continue;
    Floor& floor = *variant.floor;
    if (floor.limit_from == LimitFrom::throttling || floor.limit_from == LimitFrom::floor) continue;
    // Counters override a conclusion made without them.
    floor.limit_from = variant.counters ? LimitFrom::counters : LimitFrom::times;
    floor.held_back_by = limit_of(pair, variant, variant.counters ? &*variant.counters : nullptr);
  }
}

}  // namespace aisp::evidence
