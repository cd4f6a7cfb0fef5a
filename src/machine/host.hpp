// SPDX-License-Identifier: Apache-2.0
// Facts from /proc and /sys, read below `root`.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "machine/machine.hpp"

namespace aisp::machine {

Host read_host(const std::filesystem::path& root = "/");

// Returns the text of a small file of /proc or /sys without the space around it; empty where it cannot be read.
std::string read_word(const std::filesystem::path& path);
std::vector<int> parse_cpu_list(std::string_view text);  // "0-3,8" -> 0 1 2 3 8
std::string cpu_list_text(const std::vector<int>& cpus);
std::string detect_container(const std::filesystem::path& root);
std::string detect_virtualization(const std::filesystem::path& root);
double read_cpu_quota(const std::filesystem::path& root);
std::optional<std::uint64_t> read_memory_limit(const std::filesystem::path& root);
// Throttling and memory events of this process's control group or one above it, which a container has and its host has not.
struct GroupEvents {
  std::uint64_t periods = 0, throttled = 0;  // of the CPU quota, and those in which it was used up
  std::uint64_t killed = 0;                  // processes, for memory
  std::uint64_t most_processes = 0;          // 0: no limit
};
GroupEvents read_group_events(const std::filesystem::path& root);
// CPU time of all CPUs together since boot, in kernel ticks: all that passed, work, the part of it that programs did themselves,
// and what a hypervisor gave to others while there was work to do; `own` is the work of this process, its descendants and those
// of them that ended. Nothing if /proc/stat does not say.
struct CpuTimes {
  std::uint64_t all = 0, busy = 0, programs = 0, stolen = 0, own = 0;
};
std::optional<CpuTimes> read_cpu_times(const std::filesystem::path& root = "/", int pid = 0);
// One clause when a hypervisor gave a noticeable part of what was asked for in between to others, else empty.
std::string stolen_time(const CpuTimes& before, const CpuTimes& after);
// One clause when programs that are not ours did a noticeable part of what the CPUs could, else empty. Work of the kernel does
// not count, because it may be on our behalf.
std::string time_of_others(const CpuTimes& before, const CpuTimes& after);
int pci_numa_node(const std::filesystem::path& root, const std::string& pci);
// "580.95.05" from /proc/driver/nvidia/version; empty without a driver.
std::string read_driver_version(const std::filesystem::path& root);

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
