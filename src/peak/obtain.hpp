// SPDX-License-Identifier: Apache-2.0
// A record from the cache, or measured now and kept there.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "machine/topology/topology.hpp"
#include "peak/record.hpp"

namespace aisp::peak {

struct ObtainOptions {
  bool quick = false;         // a record of the quick variant is enough
  bool refresh = false;       // measure, whatever the cache holds
  std::string purpose;        // for who finds the GPU taken
  std::vector<int> locked{};  // ordinals of GPUs that the caller has locked
  std::function<void(const std::string& line)> note = [](const std::string&) {};
  std::string executable = "/proc/self/exe";
};

struct Obtained {
  std::optional<PeakRecord> record;
  bool from_cache = false;
  std::string why_not;  // why there is no record
};

// Obtains the figures of each of the GPUs. Those of a GPU by itself are measured on all of them at once, those that the host
// takes part in or GPUs share on one after the other. Locks the GPUs and their peers meanwhile. Throws base::Error when one is
// taken, or the user interrupts.
std::vector<Obtained> obtain_gpus(const machine::Machine& machine, const std::vector<int>& ordinals,
                                  const ObtainOptions& options);
Obtained obtain_host(const machine::Machine& machine, const ObtainOptions& options);

// Obtains the memory levels of one GPU, which is locked meanwhile, or of the host. Throws as above.
Obtained obtain_levels(const machine::Machine& machine, std::optional<int> gpu, const ObtainOptions& options);

// Measures, always anew, what is between two GPUs or more, and keeps it for `aisp doctor --topology`. Its `missing` says what
// could not be measured. Throws as above.
Obtained obtain_fabric(const machine::Topology& topology, const std::vector<int>& ordinals, const ObtainOptions& options);

// Obtains the figures of all that a run is about to use, quickly and only where nothing is known; trouble is a note, for recorded
// ceilings will do. Nothing with AISP_PEAK=off. Throws only when the user interrupts.
void ensure(const machine::Machine& machine, const std::vector<int>& gpus, ObtainOptions options);

}  // namespace aisp::peak
