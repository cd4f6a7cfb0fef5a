// SPDX-License-Identifier: Apache-2.0
#include "machine/machine.hpp"

#include <algorithm>

#include "base/hardware_key.hpp"

namespace aisp::machine {

std::string hardware_key(const Machine& machine, const std::vector<int>& gpus) {
  std::vector<std::string> names;
  for (const Gpu& gpu : machine.gpus)
    if (std::find(gpus.begin(), gpus.end(), gpu.ordinal) != gpus.end()) names.push_back(gpu.name);
  return names.empty() ? "host" : base::hardware_key(names);
}

}  // namespace aisp::machine
