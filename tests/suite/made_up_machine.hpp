// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "machine/machine.hpp"

namespace aisp::suite {

// GPUs of these names and compute capabilities, all of which reach one another.
inline machine::Machine machine_with(const std::vector<std::pair<std::string, int>>& kinds) {
  machine::Machine machine;
  machine.host.cpus_usable = 8;
  machine.host.memory_available_bytes = std::uint64_t{64} << 30;
  machine.driver_cuda_version = machine.runtime_cuda_version = 13000;
  if (kinds.empty()) machine.cuda_error = "no CUDA device";
  for (const auto& [name, sm] : kinds) {
    machine::Gpu gpu;
    gpu.ordinal = static_cast<int>(machine.gpus.size());
    gpu.uuid = "GPU-" + std::to_string(1111 * (gpu.ordinal + 1));
    gpu.name = name;
    gpu.sm = sm;
    gpu.memory_bytes = std::uint64_t{100} << 30;
    gpu.peers.assign(kinds.size(), true);
    machine.gpus.push_back(gpu);
  }
  return machine;
}

}  // namespace aisp::suite
