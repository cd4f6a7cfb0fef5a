// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <nlohmann/json.hpp>

#include "machine/ceilings.hpp"
#include "machine/chips.hpp"
#include "machine/needs.hpp"
#include "machine/topology/topology.hpp"

namespace aisp::machine {
namespace {

using nlohmann::json;

template <class T>
json or_null(const std::optional<T>& value) {
  return value ? json(*value) : json(nullptr);
}
json or_null(const std::string& text) { return text.empty() ? json(nullptr) : json(text); }
// For numbers of which one value stands for "unknown".
json unless(int value, int unknown) { return value == unknown ? json(nullptr) : json(value); }

json link_json(const NvLink& link) {
  return {{"link", link.link},
          {"active", link.active},
          {"version", or_null(link.version)},
          {"bytes_s", or_null(link.bytes_s)},
          {"remote", or_null(link.remote)},
          {"remote_pci", or_null(link.remote_pci)}};
}

json chip_json(const Gpu& gpu, const ClusterFindings& clusters) {
  const Chip chip = chip_of(gpu.sm);
  const json sizes = clusters.cluster_groups.empty() ? json(nullptr) : json(clusters.cluster_groups);
  json choices = chip.unified_kib > 0 ? json::array() : json(nullptr);
  for (const int kib : chip.shared_kib) choices.push_back(kib * 1024);
  const int warp = gpu.attribute(cudaDevAttrWarpSize);
  const int threads = gpu.attribute(cudaDevAttrMaxThreadsPerMultiProcessor);
  return {{"sm_count", gpu.sm_count},
          {"cluster_groups", sizes},
          {"unplaced_sms", clusters.cluster_groups.empty() ? json(nullptr) : json(clusters.unplaced_sms)},
          {"clock_khz", gpu.clock_khz},
          {"threads_per_sm", threads},
          {"warps_per_sm", warp > 0 ? threads / warp : 0},
          {"blocks_per_sm", gpu.attribute(cudaDevAttrMaxBlocksPerMultiprocessor)},
          {"threads_per_block", gpu.attribute(cudaDevAttrMaxThreadsPerBlock)},
          {"registers_per_sm", gpu.attribute(cudaDevAttrMaxRegistersPerMultiprocessor)},
          {"registers_per_block", gpu.attribute(cudaDevAttrMaxRegistersPerBlock)},
          {"shared_per_sm_bytes", gpu.attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor)},
          {"shared_per_block_bytes", gpu.attribute(cudaDevAttrMaxSharedMemoryPerBlock)},
          {"shared_per_block_optin_bytes", gpu.shared_memory_optin_bytes},
          {"shared_reserved_per_block_bytes", gpu.attribute(cudaDevAttrReservedSharedMemoryPerBlock)},
          {"l1_and_shared_bytes", chip.unified_kib > 0 ? json(chip.unified_kib * 1024) : json(nullptr)},
          {"shared_choices_bytes", choices},
          {"max_cluster_size", unless(clusters.max_size, 0)},
          {"dsmem", has_dsmem(gpu)},
          {"tma", has_tma(gpu)},
          {"tcgen05", tcgen05_support(gpu).yes},
          {"copy_engines", gpu.attribute(cudaDevAttrAsyncEngineCount)}};
}

json memory_json(const Gpu& gpu) {
  const Peaks peaks = theoretical_peaks(gpu);
  return {{"l2_bytes", gpu.l2_bytes},
          {"l2_persisting_max_bytes", gpu.attribute(cudaDevAttrMaxPersistingL2CacheSize)},
          {"memory_bytes", gpu.memory_bytes},
          {"memory_bus_bits", gpu.memory_bus_bits},
          {"memory_clock_khz", gpu.memory_clock_khz},
          {"computed_bytes_s", memory_clock_bytes_s(gpu)},
          {"datasheet_bytes_s", peaks.datasheet_bytes_s > 0 ? json(peaks.datasheet_bytes_s) : json(nullptr)},
          {"ecc", gpu.condition ? or_null(gpu.condition->ecc) : json(nullptr)},
          {"pageable_access", gpu.attribute(cudaDevAttrPageableMemoryAccess) != 0},
          {"pageable_uses_host_page_tables", gpu.attribute(cudaDevAttrPageableMemoryAccessUsesHostPageTables) != 0},
          {"concurrent_managed", gpu.attribute(cudaDevAttrConcurrentManagedAccess) != 0},
          {"host_native_atomics", gpu.attribute(cudaDevAttrHostNativeAtomicSupported) != 0},
          {"direct_managed_from_host", gpu.attribute(cudaDevAttrDirectManagedMemAccessFromHost) != 0}};
}

json pcie_json(const Gpu& gpu) {
  const GpuCondition none, &c = gpu.condition ? *gpu.condition : none;
  const auto rate = [](std::optional<int> generation, std::optional<int> width) {
    return generation && width ? json(pcie_bytes_s(*generation, *width)) : json(nullptr);
  };
  return {{"address", gpu.pci},
          {"generation", or_null(c.pcie_generation)},
          {"width", or_null(c.pcie_width)},
          {"bytes_s", rate(c.pcie_generation, c.pcie_width)},
          {"generation_max", or_null(c.pcie_generation_max)},
          {"width_max", or_null(c.pcie_width_max)},
          {"max_bytes_s", rate(c.pcie_generation_max, c.pcie_width_max)}};
}

json gpu_json(const Topology& topology, std::size_t index) {
  const Gpu& gpu = topology.machine.gpus[index];
  const GpuTopology& found = topology.gpus[index];
  json links = json::array(), peers = json::array();
  for (const NvLink& link : found.nvlinks) links.push_back(link_json(link));
  for (std::size_t to = 0; to < found.peers.size(); ++to)
    peers.push_back({{"gpu", topology.machine.gpus[to].ordinal},
                     {"path", path_text(topology, index, to)},
                     {"access", found.peers[to].access},
                     {"atomics", found.peers[to].atomics},
                     {"performance_rank", or_null(found.peers[to].performance_rank)}});
  return {{"ordinal", gpu.ordinal},
          {"uuid", gpu.uuid},
          {"name", gpu.name},
          {"sm", gpu.sm},
          {"mig_slice", gpu.mig},
          {"mig_mode", gpu.condition ? or_null(gpu.condition->mig_mode) : json(nullptr)},
          {"integrated", gpu.integrated},
          {"numa_node", unless(gpu.numa_node, -1)},
          {"cpus", found.cpus},
          {"chip", chip_json(gpu, found.clusters)},
          {"memory", memory_json(gpu)},
          {"pcie", pcie_json(gpu)},
          {"nvlinks", links},
          {"peers", peers}};
}

}  // namespace

json topology_json(const Topology& topology) {
  json gpus = json::array(), list = json::array();
  for (std::size_t i = 0; i < topology.gpus.size(); ++i) gpus.push_back(gpu_json(topology, i));
  for (const Unknown& unknown : unknowns(topology)) list.push_back({{"what", unknown.what}, {"why", unknown.why}});
  return {{"gpus", gpus}, {"driver_version", or_null(topology.machine.driver_version)}, {"unknown", list}};
}

}  // namespace aisp::machine
