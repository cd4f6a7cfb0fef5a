// SPDX-License-Identifier: Apache-2.0
// A record from the cache, or measured now and kept there.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "machine/topology/topology.hpp"
#include "peak/record.hpp"

namespace aisp::peak {

// Measuring happens in a child: a driver that hangs or crashes costs figures, not the command.

// The figures of a GPU to measure. Chip: those of a GPU by itself, whatever else the machine does. Links: those that the host
// takes part in (copies, launches) or that GPUs share, for which the machine must be quiet.
enum class FigurePart : std::uint8_t { all, chip, links };

struct ChildRequest {
  std::vector<std::string> gpus;  // UUIDs: the one to measure, then its peers; of a fabric all; empty: measure the host
  Subject subject = Subject::figures;
  FigurePart part = FigurePart::all;
  bool quick = false;
  std::vector<std::string> only{};  // ids of the figures to measure; empty: all
  double limit_s = 300;
  std::string executable = "/proc/self/exe";
};

// Returns a record without its key and time, as far as the child came. Throws base::Error only when the user interrupts.
PeakRecord ask(const ChildRequest& request);

// The hidden command `aisp __peak FD`: reads a request from stdin, writes to FD a line for each figure, or a record of another
// subject, of a fabric several as it becomes known.
// Returns the exit status.
int child_main(int result_fd);

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
