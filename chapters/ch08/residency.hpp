// SPDX-License-Identifier: Apache-2.0
// The part of an SM's limits that a launch leaves to others: the figures that the pairs of this chapter are about, for their
// reports; and times that follow from the rate of one of an SM's units.
#pragma once
#include <aisp/check.hpp>
#include <aisp/device_attribute.hpp>
#include <aisp/launch.hpp>
#include <aisp/workload.hpp>

#include <cstddef>
#include <utility>

namespace aisp::ch08 {

// Launches kernels and remembers the last one.
class Residency {
 public:
  template <class... Parameters, class... Arguments>
  void launch(Launch& launch, void (*kernel)(Parameters...), const Grid& grid, Arguments&&... arguments) {
    launch(kernel, grid, std::forward<Arguments>(arguments)...);
    kernel_ = reinterpret_cast<const void*>(kernel);
    grid_ = grid;
  }

  void report(Metrics& metrics) const {
    if (kernel_ == nullptr) return;
    cudaFuncAttributes of{};
    check(cudaFuncGetAttributes(&of, kernel_));
    const auto threads = static_cast<int>(grid_.threads.x * grid_.threads.y * grid_.threads.z);
    int blocks = 0;
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel_, threads, grid_.shared_bytes));
    const double resident = static_cast<double>(blocks) * multiprocessors();
    const double launched = static_cast<double>(grid_.blocks.x) * grid_.blocks.y * grid_.blocks.z;
    using Better = Metrics::Better;
    metrics.report("registers_per_thread", of.numRegs, "registers", Better::lower);
    metrics.report("local_memory_per_thread", static_cast<double>(of.localSizeBytes), "bytes", Better::lower);
    metrics.report("shared_memory_per_block", static_cast<double>(of.sharedSizeBytes + grid_.shared_bytes) / 1024, "KiB",
                   Better::lower);
    metrics.report("resident_warps_per_sm", blocks * ((threads + 31) / 32), "warps", Better::higher);
    if (resident > 0) metrics.report("waves_of_blocks", launched / resident, "waves", Better::lower);
  }

 private:
  const void* kernel_ = nullptr;
  Grid grid_{};
};

// `amount` of work on all SMs at their highest clock, when each does `rate` of it a cycle.
inline double seconds_on_all_sms(double amount, double rate) {
  const double clock_hz = 1e3 * device_attribute(cudaDevAttrClockRate);
  return amount / (rate * multiprocessors() * clock_hz);
}

}  // namespace aisp::ch08
