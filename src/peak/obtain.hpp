// SPDX-License-Identifier: Apache-2.0
// A record from the cache, or measured now and kept there.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "machine/topology/topology.hpp"
#include "peak/cache.hpp"

namespace aisp::peak {

struct Options {
  bool quick = false;         // a record of the quick variant is enough
  bool refresh = false;       // measure, whatever the cache holds
  std::string purpose;        // for who finds the GPU taken
  std::vector<int> locked{};  // ordinals of GPUs that the caller has locked
  std::function<void(const std::string& line)> note = [](const std::string&) {};
  std::string executable = "/proc/self/exe";
};

template <class Kept>
struct Obtained {
  std::optional<Kept> record;
  bool from_cache = false;
  std::string why_not;  // why there is no record
};

// One for each of the GPUs. What a GPU does by itself is measured on all of them at once, what the host takes part in or GPUs
// share on one after the other. Locks the GPUs and their peers meanwhile. Throws base::Error when one is taken, or the user
// interrupts.
std::vector<Obtained<Record>> obtain_gpus(const machine::Machine& machine, const std::vector<int>& ordinals,
                                          const Options& options);
Obtained<Record> obtain_host(const machine::Machine& machine, const Options& options);

// Obtains the levels of one GPU, which is locked meanwhile, or of the host. Throws as above.
Obtained<Levels> obtain_levels(const machine::Machine& machine, std::optional<int> gpu, const Options& options);

// Measures, always anew, what is between two GPUs or more, and keeps it for `aisp doctor --topology`. Its `missing` says what
// could not be measured. Throws as above.
Obtained<Fabric> obtain_fabric(const machine::Topology& topology, const std::vector<int>& ordinals, const Options& options);

// The same for all that a run is about to use, quickly and only where nothing is known; trouble is a note, for recorded
// ceilings will do. Nothing with AISP_PEAK=off. Throws only when the user interrupts.
void ensure(const machine::Machine& machine, const std::vector<int>& gpus, Options options);

}  // namespace aisp::peak
