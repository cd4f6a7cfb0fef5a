// SPDX-License-Identifier: Apache-2.0
// The parts of this machine's GPUs and the connections between GPUs, as found: nothing is guessed from a model's name.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/system/terminal.hpp"
#include "machine/machine.hpp"

namespace aisp::machine {

// Findings from thread block clusters: all blocks of a cluster run in one GPC, so SMs that ever shared a cluster share a GPC. A
// GPC may be cut into several such groups: of an H200's 132 SMs, 16 were seen in groups of 8 and of 2.
struct ClusterFindings {
  int max_size = 0;                 // blocks, of a kernel that allows more than the portable 8; 0: unknown
  std::vector<int> cluster_groups;  // largest first; empty: unknown
  int unplaced_sms = 0;             // that no cluster of the probe ran on
  std::string max_size_error;       // why max_size is unknown, one clause
  std::string groups_error;         // why cluster_groups is unknown, one clause
};

// The remote end of a link that leads to all GPUs.
inline constexpr std::string_view nvswitch = "NVSwitch";

struct NvLink {
  int link = 0;
  bool active = false;
  std::string version;                   // "4.0"; empty: unknown
  std::optional<std::uint64_t> bytes_s;  // one direction, the link's raw rate
  std::string remote;                    // "GPU", "NVSwitch", "NPU"; empty: unknown
  std::string remote_pci;                // "0000:04:00.0"; empty: unknown
};

// From one GPU to another.
struct PeerPath {
  std::optional<int> ancestor;  // nvmlGpuTopologyLevel_t: 0 same board, 10 PIX, 20 PXB, 30 PHB, 40 NODE, 50 SYS
  bool access = false;
  bool atomics = false;
  std::optional<int> performance_rank;  // CUDA's; smaller is better
};

struct GpuTopology {
  ClusterFindings clusters;
  std::vector<NvLink> nvlinks;
  std::string nvlink_error;     // why the links are unknown or none, one clause
  std::vector<int> cpus;        // nearest; empty: unknown
  std::vector<PeerPath> peers;  // by ordinal, itself included
};

struct Topology {
  Machine machine;
  std::vector<GpuTopology> gpus;  // in the order of machine.gpus
};

// In a child, as probe(): when the clusters of thread blocks cannot be tried there, all the rest is known and this is said.
Topology probe_topology(double limit_s = 120, const std::string& executable = "/proc/self/exe");

// The hidden command `aisp __probe_topology`.
int probe_topology_main(int fd);

// NVLinks that lead from one GPU to another: its own to that GPU, or through switches as many as both have.
int nvlinks_between(const Topology& topology, std::size_t from, std::size_t to);
// The matrix's word for a pair of GPUs: "X", "NV18", "PIX", ...; "?" when unknown.
std::string path_text(const Topology& topology, std::size_t from, std::size_t to);

// A value this machine did not tell, and why.
struct Unknown {
  std::string what;  // "GPU 0 GPCs"
  std::string why;
};
std::vector<Unknown> unknowns(const Topology& topology);

std::string topology_text(const Topology& topology, const base::Painter& paint = base::Painter{}, std::size_t width = 100);
nlohmann::json topology_json(const Topology& topology);

void to_json(nlohmann::json& json, const GpuTopology& gpu);
void from_json(const nlohmann::json& json, GpuTopology& gpu);

// A kernel of a few microseconds that says where the blocks of clusters ran. Only in a child: it makes a CUDA context.
ClusterFindings find_clusters(const Gpu& gpu);

// SMs joined by what runs, for find_clusters: `sm_of_block` of one launch with clusters of `cluster_size` blocks.
class SmGroups {
 public:
  // True when SMs were joined that were not known to be together.
  bool note(const std::vector<unsigned>& sm_of_block, int cluster_size);
  std::vector<int> sizes() const;  // largest first
  int seen() const;

 private:
  std::size_t root_of(std::size_t sm) const;
  std::vector<int> parent_;  // -1: never seen
};

}  // namespace aisp::machine
