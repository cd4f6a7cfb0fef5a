// SPDX-License-Identifier: Apache-2.0
// The topology that only the driver knows, asked in the child process, and conclusions from it.
#include "machine/topology/topology.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <functional>
#include <map>

#include "base/error.hpp"
#include "base/json_fields.hpp"
#include "base/system/files.hpp"
#include "machine/chips.hpp"
#include "machine/gpu_lock.hpp"
#include "machine/host.hpp"
#include "machine/needs.hpp"
#include "machine/nvml.hpp"
#include "machine/probe_answer.hpp"
#include "machine/topology/clusters_launch.hpp"

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

std::string error_text(cudaError_t status) {
  cudaGetLastError();  // what is said here must not be found by the next call
  return std::string{cudaGetErrorString(status)} + " (" + cudaGetErrorName(status) + ")";
}

// Launches with clusters of every size, many more than fit at once, until whole rounds of them join nothing new. A cluster takes
// the SMs of a GPC that just came free, so the groups of SMs overlap until they cover it.
void place_sms(const Gpu& gpu, ClusterFindings& findings) {
  SmGroups groups;
  constexpr int most_rounds = 20, quiet_rounds = 3, turns = 8;
  int quiet = 0;
  std::string refusal;
  for (int round = 0; round < most_rounds && quiet < quiet_rounds; ++round) {
    bool joined = false;
    for (int size = 2; size <= findings.max_size; ++size) {
      std::vector<unsigned> sm_of_block;
      const cudaError_t status = run_clusters(turns * gpu.sm_count / size, size, static_cast<unsigned>(round), sm_of_block);
      if (status == cudaSuccess) joined = groups.note(sm_of_block, size) || joined;
      else refusal = error_text(status);  // a chip may refuse some sizes; others tell enough
    }
    quiet = joined ? 0 : quiet + 1;
  }
  if (groups.seen() == 0) findings.groups_error = "the probe's kernel did not run: " + refusal;
  else if (quiet < quiet_rounds) findings.groups_error = "the probe's clusters gave no stable answer";
  else {
    findings.cluster_groups = groups.sizes();
    findings.unplaced_sms = std::max(0, gpu.sm_count - groups.seen());
  }
}

ClusterFindings unknown_clusters(const std::string& why) { return {.max_size_error = why, .groups_error = why}; }

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

std::size_t SmGroups::root_of(std::size_t sm) const {
  while (static_cast<std::size_t>(parent_[sm]) != sm) sm = static_cast<std::size_t>(parent_[sm]);
  return sm;
}

bool SmGroups::note(const std::vector<unsigned>& sm_of_block, int cluster_size) {
  bool joined = false;
  const auto size = static_cast<std::size_t>(std::max(1, cluster_size));
  for (std::size_t block = 0; block < sm_of_block.size(); ++block) {
    const std::size_t sm = sm_of_block[block];
    if (sm >= parent_.size()) parent_.resize(sm + 1, -1);
    if (parent_[sm] < 0) {
      parent_[sm] = static_cast<int>(sm);
      joined = true;
    }
    const std::size_t mine = root_of(sm), first = root_of(sm_of_block[block / size * size]);
    if (mine == first) continue;
    parent_[mine] = static_cast<int>(first);
    joined = true;
  }
  return joined;
}

std::vector<int> SmGroups::sizes() const {
  std::map<std::size_t, int> counts;
  for (std::size_t sm = 0; sm < parent_.size(); ++sm)
    if (parent_[sm] >= 0) ++counts[root_of(sm)];
  std::vector<int> sizes;
  for (const auto& [root, count] : counts) sizes.push_back(count);
  std::sort(sizes.begin(), sizes.end(), std::greater<>{});
  return sizes;
}

int SmGroups::seen() const {
  return static_cast<int>(std::count_if(parent_.begin(), parent_.end(), [](int parent) { return parent >= 0; }));
}

ClusterFindings find_clusters(const Gpu& gpu) {
  if (!has_dsmem(gpu)) return unknown_clusters("this GPU runs no thread block clusters, and NVML does not tell");
  try {
    // Tens of microseconds a launch, but in the middle of somebody's measurement they would be seen.
    const base::FileLock lock = lock_gpu(gpu.uuid, "doctor --topology");
    ClusterFindings findings;
    cudaError_t status = cudaSetDevice(gpu.ordinal);
    if (status == cudaSuccess) status = largest_cluster(&findings.max_size);
    if (status != cudaSuccess) return unknown_clusters("the probe's kernel did not run: " + error_text(status));
    place_sms(gpu, findings);
    return findings;
  } catch (const base::Error& error) {
    return unknown_clusters(error.what());
  }
}

}  // namespace aisp::machine
