// SPDX-License-Identifier: Apache-2.0
// aisp peak --levels
#pragma once
#include <string>
#include <vector>

#include "base/error.hpp"
#include "machine/machine.hpp"
#include "peak/obtain.hpp"

namespace aisp::cli {

struct LevelFlags {
  bool json = false;
  std::string svg;  // file; empty: no picture
};

// Shows the levels of these GPUs and of the host; a picture shows the first GPU, or the host if there is none.
base::Exit show_levels(const machine::Machine& machine, const std::vector<int>& gpus, const peak::Options& options,
                       const LevelFlags& flags);

}  // namespace aisp::cli
