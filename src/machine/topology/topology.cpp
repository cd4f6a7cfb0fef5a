// SPDX-License-Identifier: Apache-2.0
#include "machine/topology/topology.hpp"

#include <algorithm>

#include "machine/chips.hpp"

namespace aisp::machine {
namespace {

bool leads_to_switch(const NvLink& link) { return link.active && link.remote == nvswitch; }

// Adds the GPU's NVML readings that are unknown, with the reason.
void add_condition(const Gpu& gpu, const std::string& name, const std::string& nvml_error, std::vector<Unknown>& list) {
  if (!gpu.condition) {
    const std::string why = nvml_error.empty() ? "NVML does not know this GPU" : nvml_error;
    for (const char* what : {"PCIe link", "ECC", "MIG mode"}) list.push_back({name + what, why});
    return;
  }
  const GpuCondition& c = *gpu.condition;
  const std::string why = gpu.mig ? "NVML does not tell for a MIG slice" : "NVML does not tell on this GPU";
  if (!c.pcie_generation || !c.pcie_width || !c.pcie_generation_max || !c.pcie_width_max)
    list.push_back({name + "PCIe link", why});
  if (!c.ecc) list.push_back({name + "ECC", why});
  if (!c.mig_mode && !gpu.mig) list.push_back({name + "MIG mode", why});
}

void add_gpu(const Topology& topology, std::size_t index, std::vector<Unknown>& list) {
  const Gpu& gpu = topology.machine.gpus[index];
  const GpuTopology& found = topology.gpus[index];
  const std::string name = "GPU " + std::to_string(gpu.ordinal) + " ";
  if (found.clusters.cluster_groups.empty()) list.push_back({name + "GPCs", found.clusters.groups_error});
  if (found.clusters.max_size == 0) list.push_back({name + "largest cluster", found.clusters.max_size_error});
  if (chip_of(gpu.sm).unified_kib == 0)
    list.push_back({name + "L1 carve-out", "the programming guide's tables have no " + sm_text(gpu.sm)});
  if (found.nvlinks.empty()) list.push_back({name + "NVLink", found.nvlink_error});
  if (gpu.numa_node < 0) list.push_back({name + "NUMA node", "/sys/bus/pci/devices tells no node for " + gpu.pci});
  if (found.cpus.empty()) list.push_back({name + "CPU affinity", "neither NVML nor /sys tells"});
  add_condition(gpu, name, topology.machine.nvml_error, list);
}

}  // namespace

int nvlinks_between(const Topology& topology, std::size_t from, std::size_t to) {
  const auto& mine = topology.gpus[from].nvlinks;
  const auto& other = topology.gpus[to].nvlinks;
  const std::string& pci = topology.machine.gpus[to].pci;
  const auto direct = std::count_if(mine.begin(), mine.end(), [&](const NvLink& link) {
    return link.active && link.remote != nvswitch && !pci.empty() && link.remote_pci == pci;
  });
  const auto switched = std::min(std::count_if(mine.begin(), mine.end(), leads_to_switch),
                                 std::count_if(other.begin(), other.end(), leads_to_switch));
  return static_cast<int>(std::max(direct, switched));
}

std::string path_text(const Topology& topology, std::size_t from, std::size_t to) {
  if (from == to) return "X";
  if (const int links = nvlinks_between(topology, from, to); links > 0) return "NV" + std::to_string(links);
  const auto& peers = topology.gpus[from].peers;
  if (to >= peers.size() || !peers[to].ancestor) return "?";
  switch (*peers[to].ancestor) {
    case 0: return "BRD";
    case 10: return "PIX";
    case 20: return "PXB";
    case 30: return "PHB";
    case 40: return "NODE";
    case 50: return "SYS";
    default: return "?";
  }
}

std::vector<Unknown> unknowns(const Topology& topology) {
  std::vector<Unknown> list;
  for (std::size_t i = 0; i < topology.gpus.size(); ++i) add_gpu(topology, i, list);
  if (topology.machine.gpus.empty()) list.push_back({"GPUs", topology.machine.cuda_error});
  for (Unknown& unknown : list)
    if (unknown.why.empty()) unknown.why = "not reported";
  return list;
}

}  // namespace aisp::machine
