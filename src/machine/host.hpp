// SPDX-License-Identifier: Apache-2.0
// What /proc and /sys tell, read below `root`.
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

std::vector<int> parse_cpu_list(std::string_view text);  // "0-3,8" -> 0 1 2 3 8
std::string cpu_list_text(const std::vector<int>& cpus);
std::string detect_container(const std::filesystem::path& root);
std::string detect_virtualization(const std::filesystem::path& root);
double read_cpu_quota(const std::filesystem::path& root);
std::optional<std::uint64_t> read_memory_limit(const std::filesystem::path& root);
int pci_numa_node(const std::filesystem::path& root, const std::string& pci);
// "580.95.05" from /proc/driver/nvidia/version; empty without a driver.
std::string read_driver_version(const std::filesystem::path& root);

}  // namespace aisp::machine
