// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/layout.hpp"
#include "base/text.hpp"
#include "machine/ceilings.hpp"
#include "machine/chips.hpp"
#include "machine/host.hpp"
#include "machine/needs.hpp"
#include "machine/topology/topology.hpp"

namespace aisp::machine {
namespace {

// Labels on the left, facts on the right.
class TopologyText {
 public:
  TopologyText(const base::Painter& paint, std::size_t width) : paint_{paint}, width_{width} {}

  void heading(std::string_view text) {
    flush();
    if (!text_.empty()) text_ += '\n';
    text_ += paint_(base::Style::bold, text) + '\n';
  }
  void row(std::vector<std::string> cells) {
    cells.front().insert(0, "  ");
    rows_.push_back(std::move(cells));
  }
  void add(const std::string& label, const std::string& fact) { row({label + std::string(14 - label.size(), ' '), fact}); }
  std::string text() {
    flush();
    return text_;
  }

 private:
  void flush() {
    text_ += base::laid_out(rows_, width_);
    rows_.clear();
  }
  base::Painter paint_;
  std::size_t width_;
  std::string text_;
  base::TableRows rows_;  // below the last heading
};

std::string bytes(double count) { return base::human_bytes(count); }
std::string rate(double bytes_s) { return base::human_rate(bytes_s, "B"); }
std::string mhz(int khz) { return khz > 0 ? base::significant(khz / 1e3, 4) + " MHz" : "unknown (CUDA does not tell)"; }
std::string unknown(const std::string& why) { return "unknown (" + (why.empty() ? "not reported" : why) + ")"; }
std::string cpu_list(const std::vector<int>& cpus) { return base::join(base::split(cpu_list_text(cpus), ','), ", "); }
std::string yes_no(bool yes) { return yes ? "yes" : "no"; }

std::string gpcs(const Gpu& gpu, const ClusterFindings& clusters) {
  const std::string sms = base::plural(static_cast<std::size_t>(gpu.sm_count), "SM") + " at most " + mhz(gpu.clock_khz);
  if (clusters.cluster_groups.empty())
    return sms + "; GPCs unknown: " + (clusters.groups_error.empty() ? "not reported" : clusters.groups_error);
  std::map<int, int, std::greater<>> counts;
  for (const int size : clusters.cluster_groups) ++counts[size];
  std::vector<std::string> parts;
  for (const auto& [size, count] : counts) parts.push_back(std::to_string(count) + " of " + std::to_string(size));
  std::string text = sms + "; those that share clusters (a GPC): " + base::join(parts, ", ");
  if (clusters.unplaced_sms > 0)
    text += ", " + base::plural(static_cast<std::size_t>(clusters.unplaced_sms), "SM") + " not placed";
  return text;
}

void describe_sm(const Gpu& gpu, TopologyText& sheet) {
  const int warp = gpu.attribute(cudaDevAttrWarpSize), threads = gpu.attribute(cudaDevAttrMaxThreadsPerMultiProcessor);
  // 0 is how a record says that CUDA told nothing.
  const auto count = [&](int attribute) {
    return gpu.attribute(attribute) > 0 ? std::to_string(gpu.attribute(attribute)) : std::string{"unknown"};
  };
  const auto size = [&](int attribute) {
    return gpu.attribute(attribute) > 0 ? bytes(gpu.attribute(attribute)) : std::string{"unknown"};
  };
  const std::string warps = warp > 0 ? std::to_string(threads / warp) + " warps of " + std::to_string(warp) : "warps unknown";
  sheet.add("per SM", warps + ", " + count(cudaDevAttrMaxThreadsPerMultiProcessor) + " threads, " +
                          count(cudaDevAttrMaxBlocksPerMultiprocessor) + " blocks, " +
                          count(cudaDevAttrMaxRegistersPerMultiprocessor) + " registers, " +
                          size(cudaDevAttrMaxSharedMemoryPerMultiprocessor) + " shared memory");
  sheet.add("per block", count(cudaDevAttrMaxThreadsPerBlock) + " threads, " + count(cudaDevAttrMaxRegistersPerBlock) +
                             " registers, " + size(cudaDevAttrMaxSharedMemoryPerBlock) + " shared memory, " +
                             bytes(static_cast<double>(gpu.shared_memory_optin_bytes)) + " by opt-in; " +
                             bytes(gpu.attribute(cudaDevAttrReservedSharedMemoryPerBlock)) + " more kept by the system");
  const Chip chip = chip_of(gpu.sm);
  if (chip.unified_kib == 0)
    return sheet.add("L1 + shared", unknown("the programming guide's tables have no " + sm_text(gpu.sm)));
  std::vector<std::string> choices;
  for (const int kib : chip.shared_kib) choices.push_back(std::to_string(kib));
  sheet.add("L1 + shared", std::to_string(chip.unified_kib) + " KiB per SM; of it shared memory " + base::join(choices, ", ") +
                               " KiB (programming guide)");
}

void describe_features(const Gpu& gpu, const ClusterFindings& clusters, TopologyText& sheet) {
  const std::string size = clusters.max_size > 0 ? "up to " + base::plural(static_cast<std::size_t>(clusters.max_size), "block")
                           : has_dsmem(gpu)      ? "largest " + unknown(clusters.max_size_error)
                                                 : "none";
  sheet.add("clusters", size + ", distributed shared memory: " + yes_no(has_dsmem(gpu)));
  sheet.add("engines", "TMA: " + yes_no(has_tma(gpu)) + ", tcgen05: " + yes_no(tcgen05_support(gpu).yes) + ", " +
                           base::plural(static_cast<std::size_t>(gpu.attribute(cudaDevAttrAsyncEngineCount)), "copy engine"));
}

void describe_memory(const Gpu& gpu, TopologyText& sheet) {
  sheet.add("L2", bytes(static_cast<double>(gpu.l2_bytes)) + ", at most " +
                      bytes(gpu.attribute(cudaDevAttrMaxPersistingL2CacheSize)) + " persisting");
  const Peaks peaks = theoretical_peaks(gpu);
  std::string text = bytes(static_cast<double>(gpu.memory_bytes)) + ", ";
  if (gpu.memory_clock_khz > 0 && gpu.memory_bus_bits > 0)
    text +=
        std::to_string(gpu.memory_bus_bits) + " bit x " + mhz(gpu.memory_clock_khz) + " x 2 = " + rate(memory_clock_bytes_s(gpu));
  else text += "bandwidth " + unknown("CUDA tells no clock or bus width");
  if (peaks.datasheet_bytes_s > 0) text += ", datasheet " + rate(peaks.datasheet_bytes_s);
  if (gpu.condition && gpu.condition->ecc) text += std::string{", ECC "} + (*gpu.condition->ecc ? "on" : "off");
  else text += ", ECC " + unknown("NVML does not tell");
  sheet.add("memory", text);
  const auto has = [&](int attribute) { return yes_no(gpu.attribute(attribute) != 0); };
  sheet.add("host access",
            "pageable memory: " + has(cudaDevAttrPageableMemoryAccess) +
                ", through the host's page tables (ATS): " + has(cudaDevAttrPageableMemoryAccessUsesHostPageTables) +
                ", concurrent managed: " + has(cudaDevAttrConcurrentManagedAccess) +
                ", native atomics: " + has(cudaDevAttrHostNativeAtomicSupported) +
                ", host reads managed memory in place: " + has(cudaDevAttrDirectManagedMemAccessFromHost));
}

void describe_pcie(const Gpu& gpu, const std::string& nvml_error, TopologyText& sheet) {
  if (!gpu.condition)
    return sheet.add("PCIe", gpu.pci + ", link " + unknown(nvml_error.empty() ? "NVML does not know this GPU" : nvml_error));
  const GpuCondition& c = *gpu.condition;
  const auto link = [](std::optional<int> generation, std::optional<int> width) {
    if (!generation || !width || *generation < 1) return unknown("NVML does not tell");
    return "generation " + std::to_string(*generation) + " x" + std::to_string(*width) + ", " +
           rate(pcie_bytes_s(*generation, *width)) + " each way";
  };
  sheet.add("PCIe", gpu.pci + ", now " + link(c.pcie_generation, c.pcie_width) + " (an idle link slows down); at most " +
                        link(c.pcie_generation_max, c.pcie_width_max));
}

void describe_place(const Gpu& gpu, const GpuTopology& found, TopologyText& sheet) {
  const std::string node = gpu.numa_node >= 0 ? "node " + std::to_string(gpu.numa_node) : "node " + unknown("/sys does not tell");
  const std::string cpus = found.cpus.empty() ? unknown("neither NVML nor /sys tells") : cpu_list(found.cpus);
  sheet.add("NUMA", node + ", CPUs " + cpus);
  std::string mig = gpu.mig ? "this is a slice" : "mode " + unknown("NVML does not tell");
  if (!gpu.mig && gpu.condition && gpu.condition->mig_mode) mig = *gpu.condition->mig_mode ? "on" : "off";
  sheet.add("MIG", mig);
}

void describe_nvlink(const GpuTopology& found, TopologyText& sheet) {
  if (found.nvlinks.empty())
    return sheet.add("NVLink", "none: " + (found.nvlink_error.empty() ? "not reported" : found.nvlink_error));
  std::set<std::string> versions, remotes;
  std::size_t active = 0, timed = 0;
  double bytes_s = 0;
  for (const NvLink& link : found.nvlinks) {
    if (!link.active) continue;
    ++active;
    if (!link.version.empty()) versions.insert(link.version);
    remotes.insert(link.remote.empty() ? "an unknown device" : link.remote);
    timed += link.bytes_s ? 1 : 0;
    bytes_s += static_cast<double>(link.bytes_s.value_or(0));
  }
  std::string text = std::to_string(active) + " of " + base::plural(found.nvlinks.size(), "link") + " active";
  if (active == 0) return sheet.add("NVLink", text);
  const std::vector<std::string> known{versions.begin(), versions.end()}, ends{remotes.begin(), remotes.end()};
  text +=
      ", version " + (known.empty() ? unknown("NVML does not tell") : base::join(known, ", ")) + ", to " + base::join(ends, ", ");
  if (timed == active)
    text += "; " + rate(bytes_s) + " each way, raw (" + rate(bytes_s / static_cast<double>(active)) + " a link)";
  else text += "; bandwidth " + unknown("NVML does not tell");
  sheet.add("NVLink", text);
}

void describe_gpu(const Topology& topology, std::size_t index, TopologyText& sheet) {
  const Gpu& gpu = topology.machine.gpus[index];
  const GpuTopology& found = topology.gpus[index];
  sheet.heading("GPU " + std::to_string(gpu.ordinal) + "  " + gpu.name);
  sheet.add("identity",
            "compute capability " + std::to_string(gpu.sm / 10) + "." + std::to_string(gpu.sm % 10) + ", " + gpu.uuid);
  sheet.add("chip", gpcs(gpu, found.clusters));
  describe_sm(gpu, sheet);
  describe_features(gpu, found.clusters, sheet);
  describe_memory(gpu, sheet);
  describe_pcie(gpu, topology.machine.nvml_error, sheet);
  describe_place(gpu, found, sheet);
  describe_nvlink(found, sheet);
}

void describe_links(const Topology& topology, TopologyText& sheet) {
  const auto& gpus = topology.machine.gpus;
  const auto matrix = [&](const char* heading, const auto& cell) {
    sheet.heading(heading);
    std::vector<std::string> header{""};
    for (const Gpu& gpu : gpus) header.push_back("GPU" + std::to_string(gpu.ordinal));
    sheet.row(header);
    for (std::size_t from = 0; from < gpus.size(); ++from) {
      std::vector<std::string> row{header[from + 1]};
      for (std::size_t to = 0; to < gpus.size(); ++to) row.push_back(cell(from, to));
      sheet.row(row);
    }
  };
  matrix("Between GPUs", [&](std::size_t from, std::size_t to) { return path_text(topology, from, to); });
  matrix("Peer access (row reaches into column)", [&](std::size_t from, std::size_t to) -> std::string {
    const auto& peers = topology.gpus[from].peers;
    const PeerPath peer = to < peers.size() ? peers[to] : PeerPath{};
    return from == to ? "X" : !peer.access ? "-" : peer.atomics ? "P2P+A" : "P2P";
  });
  sheet.heading("Legend");
  for (const auto& [word, meaning] : std::initializer_list<std::pair<const char*, const char*>>{
           {"X", "itself"},
           {"NV#", "# NVLinks, directly or through NVSwitch"},
           {"BRD", "both on one board"},
           {"PIX", "at most one PCIe switch"},
           {"PXB", "several PCIe switches, not the host bridge"},
           {"PHB", "a PCIe host bridge, usually the CPU"},
           {"NODE", "PCIe host bridges of one NUMA node"},
           {"SYS", "the link between NUMA nodes"},
           {"?", "unknown: NVML does not tell"},
           {"P2P", "memory reachable; +A: native atomics too; -: not reachable"}})
    sheet.row({word, meaning});
}

}  // namespace

std::string topology_text(const Topology& topology, const base::Painter& paint, std::size_t width) {
  TopologyText sheet{paint, width};
  if (topology.machine.gpus.empty()) {
    sheet.heading("GPUs");
    const std::string& advice = topology.machine.cuda_advice;
    sheet.add("none", "no CUDA device: " + topology.machine.cuda_error + (advice.empty() ? "" : "; " + advice));
  }
  for (std::size_t i = 0; i < topology.gpus.size(); ++i) describe_gpu(topology, i, sheet);
  if (topology.gpus.size() > 1) describe_links(topology, sheet);
  return sheet.text();
}

}  // namespace aisp::machine
