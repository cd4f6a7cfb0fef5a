// SPDX-License-Identifier: Apache-2.0
// The results of `aisp peak --levels` for one GPU or the host: latency over the working set, and levels derived from it.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "machine/machine.hpp"
#include "peak/levels/staircase.hpp"

namespace aisp::peak {

// Measured; no more than that is kept.
struct MemoryLevels {
  std::vector<ChasePoint> lines;  // every line of the working set, in random order
  std::vector<ChasePoint> pages;  // one line of each page: `bytes` is what the pages span
  double page_bytes = 0;
  std::optional<ChasePoint> registers;  // of an SM: `bytes` is what it has; absent on the host
  std::optional<ChasePoint> shared;     // likewise
  std::optional<TwoKinds> l2;           // cycles of a load from either half; absent where all lines are alike, and on the host
};

// The levels derived from the lines, and the makers' figures.
struct LevelsFound {
  std::vector<MemoryLevel> memory;       // of the lines, named
  std::vector<MemoryLevel> translation;  // of the pages: what they span is what the address caches reach
  std::vector<Stated> stated;
};
LevelsFound found_in(const MemoryLevels& levels, std::vector<Stated> stated);

// Sizes by data sheets and the driver, or by the system for the host.
std::vector<Stated> stated_sizes(const machine::Gpu& gpu);
std::vector<Stated> stated_sizes_of_host();

// For people, the heading first, and what the steps alone do not say.
std::vector<std::vector<std::string>> level_rows(const MemoryLevels& levels, const LevelsFound& found);
std::vector<std::string> level_notes(const MemoryLevels& levels, const LevelsFound& found);
// Adds the levels that were found to the JSON of their record.
void add_levels(nlohmann::json& record, const LevelsFound& found);

}  // namespace aisp::peak
