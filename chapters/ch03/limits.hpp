// SPDX-License-Identifier: Apache-2.0
// This process's limits: CPUs by its affinity and by its control groups, and memory that it may lock.
#pragma once
#include <sched.h>
#include <sys/resource.h>
#include <aisp/check.hpp>
#include <aisp/workload.hpp>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

namespace aisp::ch03 {

constexpr double unlimited = std::numeric_limits<double>::infinity();

// CPUs that the calling thread may run on.
inline std::vector<int> usable_cpus() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) != 0)
    throw Unsupported{std::string{"the kernel does not tell the CPU affinity ("} + std::strerror(errno) + ")"};
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  return cpus;
}

// Keeps the calling thread, and threads that it starts from now on, on `cpus`.
inline void run_only_on(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(static_cast<std::size_t>(cpu), &set);
  if (::sched_setaffinity(0, sizeof set, &set) != 0)
    throw Unsupported{std::string{"the kernel refuses to change the CPU affinity ("} + std::strerror(errno) + ")"};
}

// Gives the calling thread its CPUs back at the end.
class AffinityGuard {
 public:
  AffinityGuard() { ::sched_getaffinity(0, sizeof set_, &set_); }
  ~AffinityGuard() { ::sched_setaffinity(0, sizeof set_, &set_); }
  AffinityGuard(const AffinityGuard&) = delete;
  AffinityGuard& operator=(const AffinityGuard&) = delete;

 private:
  cpu_set_t set_{};
};

// Microseconds of CPU time in each period. "max" and -1 stand for no limit.
inline double quota_of(std::istream& quota, std::istream& period) {
  double quota_us = 0, period_us = 0;
  return quota >> quota_us && period >> period_us && quota_us > 0 && period_us > 0 ? quota_us / period_us : unlimited;
}

// How many CPUs' worth of time the control groups grant (cpu.max); every group above this process's own counts as well.
inline double cpu_quota() {
  const std::filesystem::path root{"/sys/fs/cgroup"};
  std::ifstream quota{root / "cpu/cpu.cfs_quota_us"}, period{root / "cpu/cpu.cfs_period_us"};  // version 1, in a container
  double least = quota_of(quota, period);
  std::ifstream groups{"/proc/self/cgroup"};
  for (std::string line; std::getline(groups, line);) {
    if (line.rfind("0::/", 0) != 0) continue;
    std::filesystem::path folder = root;
    folder += line.substr(3);
    for (; folder.string().size() >= root.string().size(); folder = folder.parent_path()) {
      std::ifstream limit{folder / "cpu.max"};
      least = std::min(least, quota_of(limit, limit));
    }
  }
  return least;
}

inline double memlock_limit_mib() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return unlimited;
  return static_cast<double>(limit.rlim_cur) / (1 << 20);
}

// Returns the memory that the kernel counts as locked (mlock) or pinned by devices for this process.
inline double locked_mib() {
  std::ifstream status{"/proc/self/status"};
  double kib = 0;
  for (std::string key; status >> key;) {
    double value = 0;
    if ((key == "VmLck:" || key == "VmPin:") && status >> value) kib += value;
  }
  return kib / 1024;
}

// No limit is no number, so nothing is reported then.
inline void report_limit(Metrics& metrics, const char* name, double value, const char* unit) {
  if (std::isfinite(value)) metrics.report(name, value, unit, Metrics::Better::higher);
}

}  // namespace aisp::ch03
