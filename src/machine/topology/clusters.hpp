// SPDX-License-Identifier: Apache-2.0
// A kernel of a few microseconds that says where the blocks of clusters ran. Only in a child: it makes a CUDA context.
#pragma once
#include "machine/topology/topology.hpp"

namespace aisp::machine {

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
