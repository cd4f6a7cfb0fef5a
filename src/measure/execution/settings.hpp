// SPDX-License-Identifier: Apache-2.0
// Settings that persist beyond the variant that makes them.
#pragma once
#include <cuda_runtime_api.h>
#include <sched.h>

#include <array>
#include <string>
#include <vector>

#include "pair/session.hpp"

namespace aisp::measure {

// Limits of the devices and the access-policy windows of the pair's streams, as the workload's constructor left them.
class DeviceLimits {
 public:
  explicit DeviceLimits(pair::Session& session);
  // Puts back what has changed, and names it.
  std::vector<std::string> restore();

 private:
  struct OfGpu {
    int ordinal = 0;
    cudaStream_t stream = nullptr;
    std::array<std::size_t, 4> limits{};
    cudaStreamAttrValue window{};
    cudaFuncCache cache_preference = cudaFuncCachePreferNone;
  };
  std::vector<OfGpu> gpus_;
};

// This thread's CPU affinity, priority and rounding mode.
class HostSettings {
 public:
  HostSettings();
  // Puts back what has changed, and names it.
  std::vector<std::string> restore() const;

 private:
  cpu_set_t cpus_{};
  int priority_ = 0;
  int rounding_ = 0;
};

}  // namespace aisp::measure
