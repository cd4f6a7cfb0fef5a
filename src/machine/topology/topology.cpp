// SPDX-License-Identifier: Apache-2.0
// The topology that only the driver knows, asked in the child process, and conclusions from it.
#include "machine/topology/topology.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "base/json_fields.hpp"
#include "base/system/files.hpp"
#include "machine/chips.hpp"
#include "machine/host.hpp"
#include "machine/nvml.hpp"
#include "machine/probe/probe_answer.hpp"

namespace aisp::machine {
namespace {

std::vector<int> local_cpus(const std::string& pci) {
  const auto list = base::try_read_file("/sys/bus/pci/devices/" + pci + "/local_cpulist");
  return pci.empty() || !list ? std::vector<int>{} : parse_cpu_list(*list);
}

int peer_attribute(cudaDeviceP2PAttr attribute, int from, int to, int otherwise) {
  int value = 0;
  return cudaDeviceGetP2PAttribute(&value, attribute, from, to) == cudaSuccess ? value : otherwise;
}

PeerPath read_path(const Gpu& from, const Gpu& to, const std::optional<NvmlDevice>& device) {
  PeerPath path;
  if (from.ordinal == to.ordinal) return path;
  const auto other = Nvml::get().device(to.uuid);
  if (device && other) path.ancestor = device->common_ancestor(*other);
  path.access = static_cast<std::size_t>(to.ordinal) < from.peers.size() && from.peers[static_cast<std::size_t>(to.ordinal)];
  path.atomics = peer_attribute(cudaDevP2PAttrNativeAtomicSupported, from.ordinal, to.ordinal, 0) != 0;
  if (const int rank = peer_attribute(cudaDevP2PAttrPerformanceRank, from.ordinal, to.ordinal, -1); rank >= 0 && path.access)
    path.performance_rank = rank;
  return path;
}

GpuTopology read_gpu(const Gpu& gpu, const std::vector<Gpu>& gpus) {
  GpuTopology topology;
  const auto device = Nvml::get().device(gpu.uuid);
  if (device) {
    topology.nvlinks = device->nvlinks(topology.nvlink_error);
    topology.cpus = device->nearest_cpus();
  } else topology.nvlink_error = Nvml::get().available() ? "NVML does not know this GPU" : Nvml::get().error();
  if (topology.cpus.empty()) topology.cpus = local_cpus(gpu.pci);
  for (const Gpu& other : gpus) topology.peers.push_back(read_path(gpu, other, device));
  topology.clusters = find_clusters(gpu);
  return topology;
}

// The driver's answers without the probe's kernel, for when that one brought the child down.
Topology without_kernel(const std::string& why, const std::string& executable) {
  Topology topology{.machine = probe(60, executable), .gpus = {}};
  for (const Gpu& gpu : topology.machine.gpus) {
    GpuTopology found;
    found.clusters.max_size_error = found.clusters.groups_error = found.nvlink_error = why;
    found.cpus = local_cpus(gpu.pci);
    for (const bool access : gpu.peers) found.peers.push_back({.access = access});
    topology.gpus.push_back(found);
  }
  return topology;
}

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

// The form in which the child that asked the driver answers, without what is unknown.
AISP_DESCRIBE(NvLink, link, active, version, bytes_s, remote, remote_pci)
AISP_DESCRIBE(PeerPath, ancestor, access, atomics, performance_rank)

template <class Visitor>
static void describe(GpuTopology& g, Visitor& visit) {
  visit("max_size", g.clusters.max_size);
  visit("cluster_groups", g.clusters.cluster_groups);
  visit("unplaced_sms", g.clusters.unplaced_sms);
  visit("max_size_error", g.clusters.max_size_error);
  visit("groups_error", g.clusters.groups_error);
  visit("nvlinks", g.nvlinks);
  visit("nvlink_error", g.nvlink_error);
  visit("cpus", g.cpus);
  visit("peers", g.peers);
}

void to_json(nlohmann::json& json, const GpuTopology& gpu) { json = base::json_of(gpu); }

void from_json(const nlohmann::json& json, GpuTopology& gpu) {
  base::JsonReader reader{json, "gpu"};
  describe(gpu, reader);
}

Topology probe_topology(double limit_s, const std::string& executable) {
  Topology topology;
  const ProbeAnswer answer = ask_child("__probe_topology", limit_s, executable);
  try {
    if (!answer.error.empty()) topology = without_kernel(answer.error, executable);
    else {
      answer.json.at("machine").get_to(topology.machine);
      answer.json.at("gpus").get_to(topology.gpus);
    }
  } catch (const std::exception& error) {
    topology = without_kernel(std::string{"the probe gave an unreadable answer: "} + error.what(), executable);
  }
  topology.gpus.resize(topology.machine.gpus.size());
  return topology;
}

int probe_topology_main(int fd) {
  const Machine machine = probe_here();
  std::vector<GpuTopology> gpus;
  for (const Gpu& gpu : machine.gpus) gpus.push_back(read_gpu(gpu, machine.gpus));
  return write_answer(fd, {{"machine", machine}, {"gpus", gpus}});
}

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
