// SPDX-License-Identifier: Apache-2.0
#include "machine/topology/topology.hpp"

#include <algorithm>
#include <functional>
#include <map>

#include "base/error.hpp"
#include "machine/gpu_lock.hpp"
#include "machine/needs.hpp"
#include "machine/topology/clusters_launch.hpp"

namespace aisp::machine {
namespace {

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
