// SPDX-License-Identifier: Apache-2.0
// The properties of a machine that can decide its times: recorded with every expectation, and checked before two numbers are
// compared.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "evidence/manifest.hpp"
#include "evidence/result.hpp"

namespace aisp::evidence {

struct Fingerprint {
  std::string hardware;  // base/hardware_key.hpp; "host" for a host pair
  // The host's part; 0 usable CPUs: nobody wrote it down, so it agrees with none.
  std::string cpu;
  int cpus_usable = 0, numa_nodes = 0;
  std::optional<double> cpu_quota{};  // CPUs whose time is granted; nothing: no limit
  std::string hypervisor;             // empty: none was seen
  std::uint64_t memory_bytes = 0;     // whole GiB: the rest changes from one start to the next
  // The GPU's part, empty for a host pair; it is told, and decides nothing but the hardware key.
  std::string gpu, driver, cuda;
  double power_limit_w = 0;
  std::map<std::string, std::string> libraries;  // versions

  bool operator==(const Fingerprint&) const = default;
};

// The kind of hardware that a pair's result is of: the key of the GPUs that it used, "host" for a host pair, empty for a pair
// that used none (skipped) or one that the manifest does not know.
std::string hardware_key(const PairResult& pair, const Manifest& manifest);

Fingerprint fingerprint_of(const PairResult& pair, const Manifest& manifest);

// Lists differences of the host's parts in words ("16 usable CPUs, now 2"); empty if times that depend on the host may be
// compared.
std::vector<std::string> host_differences(const Fingerprint& recorded, const Fingerprint& here);
// Likewise of the rest: driver, power limit, CUDA runtime, libraries that both know.
std::vector<std::string> gpu_differences(const Fingerprint& recorded, const Fingerprint& here);

// Twelve hexadecimal digits that stand for all of it.
std::string id_of(const Fingerprint& fingerprint);

// Twelve hexadecimal digits for each physical GPU (or MIG instance) that the pair used, from which nobody learns its UUID. They
// are no part of the fingerprint: GPUs of one model are compared with one another, and a reader should know how many were
// recorded.
std::vector<std::string> gpu_ids(const PairResult& pair);
// The same of all that the run saw.
std::vector<std::string> gpu_ids(const Manifest& manifest);

// A virtual machine does not tell which processor it has, and on the next of its kind what the host decides may take half as
// long. Why `here`, a machine with these GPUs, is perhaps on another host than one of its kind that had those; nothing where a
// GPU is in both, where it is no virtual machine, or has no GPU to be known by.
std::optional<std::string> other_host(const Fingerprint& here, const std::vector<std::string>& gpus_here,
                                      const std::vector<std::string>& those);

}  // namespace aisp::evidence
