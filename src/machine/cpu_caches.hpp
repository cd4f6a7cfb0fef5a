// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace aisp::machine {

// A kind of cache of the host's CPUs.
struct CpuCache {
  int level = 0;
  std::string type;  // "Data", "Instruction", "Unified"
  std::uint64_t bytes = 0;
  std::vector<std::string> shared_by;  // the CPUs of each instance, as "0-3,8"
};

// Returns the caches by level and type, as /sys lists them below `root`; empty when it does not.
std::vector<CpuCache> read_cpu_caches(const std::filesystem::path& root = "/");

// Returns the bytes of all instances of the caches of the last level; 0 when unknown.
std::uint64_t last_level_cache_bytes(const std::filesystem::path& root = "/");

}  // namespace aisp::machine
