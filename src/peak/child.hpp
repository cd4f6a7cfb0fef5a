// SPDX-License-Identifier: Apache-2.0
// Measuring happens in a child: a driver that hangs or crashes costs figures, not the command.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "peak/fabric/fabric.hpp"
#include "peak/figures.hpp"
#include "peak/levels/levels.hpp"

namespace aisp::peak {

// Chip: what a GPU does by itself, whatever else the machine does. Links: what the host takes part in (copies, launches) and what
// GPUs share, for which the machine must be quiet.
enum class Part : std::uint8_t { all, chip, links };

struct Request {
  std::vector<std::string> gpus;  // UUIDs: the one to measure, then its peers; empty: measure the host
  Part part = Part::all;          // of a GPU
  bool quick = false;
  bool levels = false;              // memory levels instead of figures
  bool fabric = false;              // what is between all the GPUs instead of figures
  std::vector<std::string> only{};  // ids of the figures to measure; empty: all
  double limit_s = 300;
  std::string executable = "/proc/self/exe";
};

struct Answer {
  std::vector<Figure> figures;
  std::optional<Levels> levels;  // without the key
  std::optional<Fabric> fabric;  // without the key, as far as it was measured
  std::string trouble;           // why the child did not come to its end; what it told before counts
};

// Throws base::Error only when the user interrupts.
Answer ask(const Request& request);

// The hidden command `aisp __peak FD`: reads a request from stdin, writes a line for each figure, or those of memory levels or
// of links, to FD.
// Returns the exit status.
int child_main(int result_fd);

}  // namespace aisp::peak
