// SPDX-License-Identifier: Apache-2.0
// The results of `aisp peak --levels` for one GPU or the host: latency over the working set, and levels derived from it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "machine/machine.hpp"

namespace aisp::peak {

// Latency over the working set: the orders in which a chase visits memory, and the levels that the steps tell.

// The result of a chase through so many bytes: each load gives the address of the next.
struct ChasePoint {
  double bytes = 0;
  double ns = 0;       // a load
  double cycles = 0;   // the same by the SM's clock; 0: not known
  double bytes_s = 0;  // of all SMs reading through as many bytes; 0: not measured
};

// A flat part of the staircase.
struct MemoryLevel {
  std::string name;  // "L1", "L2"; empty: nothing is known of that size
  double ns = 0, cycles = 0;
  double bytes_s = 0;       // median over the second half of its flat part; 0: not measured
  double first_bytes = 0;   // of the flat part
  double held_bytes = 0;    // the largest working set that the level held
  double beyond_bytes = 0;  // the next one that was tried; 0: there is no step after this level
};

// From points in ascending order. A level is flat over at least half an octave's points; what rises all the way is a way between
// two levels. Nothing for less than a handful of points.
std::vector<MemoryLevel> find_levels(const std::vector<ChasePoint>& points);

// A stated size that gives a level its name.
struct Stated {
  std::string name;
  double bytes = 0;
  std::string source;
  std::string doubt{};  // why it may be wrong; empty: no doubt
};
// Gives each level the name of the stated size that is nearest to what it held, no further than a factor of two; the one beyond
// the last step is `memory`. No name is given twice.
void name_levels(std::vector<MemoryLevel>& levels, const std::vector<Stated>& stated, const std::string& memory);
const Stated* stated_of(const MemoryLevel& level, const std::vector<Stated>& stated);  // null where nobody states it

// Two kinds of lines by how long a load of each takes: those of the near half of L2 and those of the far one.
struct TwoKinds {
  double near = 0, far = 0;  // medians
  double far_share = 0;      // of all, 0 to 1
};
// Nothing where the values are of one kind: the two medians differ by less than `least_ratio`, one kind is rare, or there is no
// gap between them.
std::optional<TwoKinds> two_kinds(std::vector<double> values, double least_ratio = 1.08);

// Sizes from `first` to `last`, so many an octave, each a multiple of `multiple`.
std::vector<std::size_t> chase_sizes(std::size_t first, std::size_t last, int per_octave, std::size_t multiple);

// An order of a chase is one cycle: from each place to the next, and from the last to the first.

// Byte offsets of every line of the first `bytes`, in random order within each window, the windows in random order too. No
// prefetcher can follow, while so few pages are in turn at once that their addresses stay translated.
std::vector<std::uint64_t> chase_of_lines(std::size_t bytes, std::size_t line, std::size_t window, std::uint64_t seed);

// One line of each page, at another place in each so that the lines do not meet in one set of a cache; the pages in random order.
std::vector<std::uint64_t> chase_of_pages(std::size_t bytes, std::size_t line, std::size_t page, std::uint64_t seed);

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
