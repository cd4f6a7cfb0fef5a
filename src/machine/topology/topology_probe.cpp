// SPDX-License-Identifier: Apache-2.0
// The topology that only the driver knows, asked in the child process.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/system/files.hpp"
#include "base/text.hpp"
#include "machine/host.hpp"
#include "machine/machine.hpp"
#include "machine/nvml.hpp"
#include "machine/probe/probe_answer.hpp"
#include "machine/topology/topology.hpp"

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

}  // namespace

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

}  // namespace aisp::machine
