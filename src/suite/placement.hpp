// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "machine/machine.hpp"
#include "pair/registry.hpp"
#include "run/parent/world.hpp"
#include "suite/settings/configuration.hpp"

namespace aisp::suite {

// Returns the ordinals of the GPUs a run may use: all for an empty list, else those named by index or UUID (or its beginning), in
// the order given. Throws base::Error: usage for one that does not exist, unfit if there is none at all.
std::vector<int> choose_gpus(const machine::Machine& machine, const std::vector<std::string>& names);

// The place of a pair, or of one point of its sweep.
struct Placement {
  std::string label() const { return entry->target() + (point.name.empty() ? "" : " " + point.name); }

  const pair::Entry* entry = nullptr;
  Point point;                            // the point of the pair's sweep
  std::size_t index = 0;                  // position in the run
  std::vector<std::vector<int>> choices;  // sets of GPU ordinals, best first; one empty set for host pairs; none: it cannot run
  std::string obstacle;                   // why it cannot, one clause
  std::string advice;                     // the way round it
  bool alone = false;                     // nothing else may run while it is measured, because the host affects its times
  bool takes_turns = false;               // of those: others may work before and after
  std::size_t variants = 0;               // number of variants, from which its duration is estimated

  // Whether nothing else may run from its start on: on the host, the times of the verification are those that the timed ones are
  // compared with.
  bool begins_alone() const { return alone && (!takes_turns || entry->pair->device == Device::host); }
};

// Whether nothing else may run on the machine while it is measured: by pair/host_dependent.hpp, and if the host's clock times the
// pair.
bool runs_alone(const Pair& pair, run::TimingMode mode);

// Places the selected pairs; each point of a sweep has a placement of its own.
std::vector<Placement> place(const std::vector<const pair::Entry*>& selected, const machine::Machine& machine,
                             const std::vector<int>& gpus, const Configuration& configuration = {},
                             const std::function<bool(Library)>& has_library = {});

// In a run of several processes: places rank i of each pair with ranks in process i, on that process's GPU. `machine` is process
// 0's; the GPUs that it sees of all ranks are its choice, so that it locks them.
void place_ranks(std::vector<Placement>& placements, const machine::Machine& machine, const std::vector<run::Process>& processes,
                 const std::function<bool(Library)>& has_library = {});
// Returns the GPUs of the first `ranks` processes.
std::vector<std::string> gpus_of_ranks(const std::vector<run::Process>& processes, int ranks);

}  // namespace aisp::suite
