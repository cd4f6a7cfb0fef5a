// SPDX-License-Identifier: Apache-2.0
// Measuring happens in a child: a driver that hangs or crashes costs figures, not the command.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "peak/figures.hpp"

namespace aisp::peak {

struct Wish {
  std::vector<std::string> gpus;  // UUIDs: the one to measure, then its peers; empty: measure the host
  bool quick = false;
  double limit_s = 300;
  std::string executable = "/proc/self/exe";
};

struct Answer {
  std::vector<Figure> figures;
  std::string trouble;  // why the child did not come to its end; what it told before counts
};

// Throws base::Error only when the user interrupts.
Answer ask(const Wish& wish);

// The hidden command `aisp __peak FD`: reads a wish from stdin, writes a line for each figure to FD. Returns the exit status.
int child_main(int result_fd);

}  // namespace aisp::peak
