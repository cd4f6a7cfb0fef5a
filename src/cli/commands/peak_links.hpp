// SPDX-License-Identifier: Apache-2.0
// aisp peak --links
#pragma once
#include <string>
#include <vector>

#include "base/error.hpp"
#include "machine/topology/topology.hpp"
#include "peak/obtain.hpp"

namespace aisp::cli {

struct PeakFlags {
  bool json = false;
  bool refresh = false;
  bool quick = false;
  bool levels = false;
  bool links = false;
  std::string svg, csv, markdown;  // files; empty: none
  std::vector<std::string> peers;  // files of --links --json
  std::vector<int> gpus;
};

// Shows what is between GPUs. Exit::failed: a collective gave wrong results; Exit::regression: a GPU or a link is slow;
// Exit::unfit: something could not be measured, other than collectives on a machine without NCCL.
base::Exit show_links(const machine::Topology& topology, const std::vector<int>& gpus, const peak::ObtainOptions& options,
                      const PeakFlags& flags);

// Returns what aisp peak --links found on this machine last, as lines and in `json`; how to measure it, where it never ran.
std::string known_links(const machine::Topology& topology, nlohmann::json& json);

}  // namespace aisp::cli
