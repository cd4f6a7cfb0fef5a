// SPDX-License-Identifier: Apache-2.0
// The kind of hardware of a result as one word: it names a folder of expectations, and doctor and reports show it.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace aisp::base {

// Returns a GPU's key: its driver name without maker and brand, so that every product, form factor, memory size and MIG profile
// has a key of its own. "NVIDIA H200" is h200, "NVIDIA H100 80GB HBM3" h100_80gb_hbm3, "NVIDIA H100 PCIe" h100_pcie, "NVIDIA
// A100-SXM4-40GB MIG 1g.5gb" a100_sxm4_40gb_mig_1g_5gb. Only a-z, 0-9 and _.
std::string gpu_key(std::string_view name);

// Returns the key of GPUs that work together: "h200", "2x_h200", "h200_and_l40s" for different kinds, in any order; empty for
// none.
std::string hardware_key(const std::vector<std::string>& gpu_names);

// The key of everything that needs no GPU, whatever the host.
inline constexpr std::string_view hardware_of_hosts = "host";

}  // namespace aisp::base
