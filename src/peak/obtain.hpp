// SPDX-License-Identifier: Apache-2.0
// A record from the cache, or measured now and kept there.
#pragma once
#include <functional>
#include <optional>
#include <string>

#include "peak/cache.hpp"

namespace aisp::peak {

struct Options {
  bool quick = false;    // a record of the quick variant is enough
  bool refresh = false;  // measure, whatever the cache holds
  std::string purpose;   // for who finds the GPU taken
  std::function<void(const std::string& line)> note = [](const std::string&) {};
  std::string executable = "/proc/self/exe";
};

struct Obtained {
  std::optional<Record> record;
  bool from_cache = false;
  std::string why_not;  // why there is no record
};

// Locks the GPU and its peers while it measures. Throws base::Error when one is taken, or the user interrupts.
Obtained obtain_gpu(const machine::Machine& machine, int ordinal, const Options& options);
Obtained obtain_host(const machine::Machine& machine, const Options& options);

// The same for all that a run is about to use, quickly and only where nothing is known; trouble is a note, for recorded
// ceilings will do. Nothing with AISP_PEAK=off. Throws only when the user interrupts.
void ensure(const machine::Machine& machine, const std::vector<int>& gpus, Options options);

}  // namespace aisp::peak
