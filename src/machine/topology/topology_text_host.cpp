// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/text.hpp"
#include "machine/host.hpp"
#include "machine/topology/topology_parts.hpp"

namespace aisp::machine {
namespace {

std::string bytes(std::uint64_t count) { return base::human_bytes(static_cast<double>(count)); }

std::string number(std::optional<int> value, const std::string& noun) {
  return value ? base::plural(static_cast<std::size_t>(*value), noun) : "unknown " + noun + "s (/sys does not tell)";
}

std::string processors(const Topology& topology) {
  const Host& host = topology.machine.host;
  const HostTopology& found = topology.host;
  std::string text = number(found.sockets, "socket") + ", " + number(found.cores, "core") + ", " +
                     base::plural(static_cast<std::size_t>(host.cpus_online), "thread");
  if (host.cpus_usable != host.cpus_online) text += ", " + std::to_string(host.cpus_usable) + " usable by this process";
  if (host.cpu_quota > 0) text += ", quota of " + base::significant(host.cpu_quota) + " CPUs";
  return text;
}

// "L1d": as lscpu writes it.
std::string cache_name(const CpuCache& cache) {
  const char* kind = cache.type == "Data" ? "d" : cache.type == "Instruction" ? "i" : "";
  return "L" + std::to_string(cache.level) + kind;
}

std::string sharing(const CpuCache& cache) {
  const auto [least, most] = std::minmax_element(cache.shared_by.begin(), cache.shared_by.end(),
                                                 [](const auto& a, const auto& b) { return a.size() < b.size(); });
  if (least == cache.shared_by.end()) return {};
  if (most->size() == 1) return "each private to a CPU";
  if (least->size() != most->size())
    return "each shared by " + std::to_string(least->size()) + " to " + std::to_string(most->size()) + " CPUs";
  return "each shared by " + std::to_string(most->size()) + " CPUs, the first by " + cpu_list_text(cache.shared_by.front());
}

void describe_caches(const HostTopology& found, TopologyText& sheet) {
  if (found.caches.empty()) return sheet.add("caches", "unknown (/sys/devices/system/cpu does not tell)");
  std::vector<std::vector<std::string>> rows;
  for (const CpuCache& cache : found.caches) {
    std::string details = sharing(cache);
    if (cache.ways && *cache.ways > 0) details += ", " + std::to_string(*cache.ways) + "-way";
    if (cache.line_bytes) details += ", " + std::to_string(*cache.line_bytes) + " B lines";
    rows.push_back({cache_name(cache), bytes(cache.bytes), "x " + std::to_string(cache.shared_by.size()), details});
  }
  sheet.table("caches", rows);
}

void describe_pages(const HostTopology& found, TopologyText& sheet) {
  std::vector<std::string> parts = {bytes(found.page_bytes)};
  for (const HugePages& huge : found.huge_pages)
    parts.push_back("huge " + bytes(huge.page_bytes) + ": " + std::to_string(huge.total) + " reserved, " +
                    std::to_string(huge.free) + " free");
  parts.push_back("transparent huge pages: " +
                  (found.transparent_huge_pages.empty() ? "unknown (/sys does not tell)" : found.transparent_huge_pages));
  sheet.add("pages", base::join(parts, "; "));
}

void describe_numa(const Host& host, const HostTopology& found, TopologyText& sheet) {
  if (host.numa.empty()) return sheet.add("NUMA", "unknown (/sys/devices/system/node does not tell)");
  std::vector<std::vector<std::string>> rows(1, {"node", "memory"});
  const bool distances = host.numa.size() > 1;
  if (distances) rows[0].emplace_back("distance to each");
  rows[0].emplace_back("CPUs");
  for (std::size_t i = 0; i < host.numa.size(); ++i) {
    const NumaNode& node = host.numa[i];
    rows.push_back({std::to_string(node.id), bytes(node.memory_bytes)});
    std::vector<std::string> row;
    if (i < found.numa_distances.size())
      for (const int distance : found.numa_distances[i]) row.push_back(std::to_string(distance));
    if (distances) rows.back().push_back(row.empty() ? "unknown" : base::join(row, " "));
    rows.back().push_back(node.cpus.empty() ? "none" : cpu_list_text(node.cpus));
  }
  sheet.table("NUMA", rows);
}

std::string rate_text(const Nic& nic) { return nic.bits_s ? base::human_rate(*nic.bits_s, "bit") : "speed unknown"; }

void describe_nics(const HostTopology& found, const std::vector<Gpu>& gpus, TopologyText& sheet) {
  if (found.nics.empty()) return sheet.add("network", "no interface with a device behind it");
  std::vector<std::vector<std::string>> rows;
  for (const Nic& nic : found.nics) {
    std::vector<std::string> details = {nic.numa_node < 0 ? "NUMA node unknown" : "NUMA node " + std::to_string(nic.numa_node)};
    if (!nic.pci.empty()) details.push_back(nic.pci);
    if (!nic.driver.empty()) details.push_back(nic.driver);
    if (!nic.rdma_device.empty() && nic.rdma_device != nic.name) details.push_back("RDMA device " + nic.rdma_device);
    for (std::size_t i = 0; i < nic.gpu_paths.size() && i < gpus.size(); ++i)
      if (!nic.gpu_paths[i].empty()) details.push_back(nic.gpu_paths[i] + " to GPU " + std::to_string(gpus[i].ordinal));
    rows.push_back({nic.name, nic.kind.empty() ? "unknown kind" : nic.kind, rate_text(nic),
                    nic.state.empty() ? "state unknown" : base::lower(nic.state), base::join(details, ", ")});
  }
  sheet.table("network", rows);
}

}  // namespace

void describe_host(const Topology& topology, TopologyText& sheet) {
  const Host& host = topology.machine.host;
  sheet.add("CPU", host.cpu.empty() ? "unknown (/proc/cpuinfo names no model)" : host.cpu);
  sheet.add("", processors(topology));
  describe_caches(topology.host, sheet);
  sheet.add("memory", bytes(host.memory_bytes) + ", " + bytes(host.memory_available_bytes) + " available");
  describe_pages(topology.host, sheet);
  describe_numa(host, topology.host, sheet);
  describe_nics(topology.host, topology.machine.gpus, sheet);
}

}  // namespace aisp::machine
