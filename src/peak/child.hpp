// SPDX-License-Identifier: Apache-2.0
// Measuring happens in a child: a driver that hangs or crashes costs figures, not the command.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "peak/record.hpp"

namespace aisp::peak {

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

}  // namespace aisp::peak
