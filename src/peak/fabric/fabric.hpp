// SPDX-License-Identifier: Apache-2.0
// The results of `aisp peak --links`: the GPUs side by side, the path from each to each, and collectives of all of them; which of
// them are slow; tables for people and for scripts.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/words.hpp"
#include "peak/figures.hpp"

namespace aisp::peak {

struct FabricGpu {
  int ordinal = 0;
  std::string uuid, name;
  std::vector<Figure> figures;  // measured on all GPUs at once
  const Figure* find(std::string_view id) const { return find_measured(figures, id); }
};

// From one GPU to another, while no other pair works.
struct FabricPair {
  int from = 0, to = 0;     // ordinals
  std::string path;         // "NV18", "SYS", as doctor --topology has it
  bool direct = false;      // peer access; otherwise copies go through the host
  double bytes_s = 0;       // of the copy engine
  double both_bytes_s = 0;  // both directions at once, their sum
  double latency_s = 0;     // of a load of `to`'s memory by `from`; 0: it has no access
};

enum class Collective : std::uint8_t { all_reduce, all_gather, reduce_scatter, all_to_all };
inline constexpr std::size_t collectives = 4;
constexpr base::Words<collectives> words_of(Collective /*any*/) {
  return {{"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}};
}
constexpr std::string_view name_of(Collective operation) { return base::word_for(operation); }

// One size of a curve, as nccl-tests count: `bytes` are those of the larger buffer of a rank.
struct CollectiveTime {
  Collective operation = Collective::all_reduce;
  double bytes = 0;
  double seconds = 0;
  std::uint64_t wrong = 0;  // elements, over all ranks
  double algorithm_bytes_s() const { return bytes / seconds; }
  // The rate that each rank's link must have to carry that: comparable with the hardware's, whatever the number of ranks.
  double bus_bytes_s(std::size_t ranks) const;
};
// Bus bandwidth over algorithm bandwidth.
double bus_factor(Collective operation, std::size_t ranks);

struct Fabric {
  std::vector<FabricGpu> gpus;
  std::vector<FabricPair> pairs;
  std::string nccl;  // version; empty: it was not opened
  std::vector<CollectiveTime> times;
  std::vector<std::string> missing;  // why parts were not measured, a sentence each
  const FabricPair* find(int from, int to) const;
};
// Tells how to see why NCCL failed or what it waits for: the process that measures has no terminal.
inline constexpr std::string_view nccl_advice = "; see nccl.log after NCCL_DEBUG=INFO NCCL_DEBUG_FILE=nccl.log aisp peak --links";

// The key of a record of all these GPUs.
Key fabric_key(const machine::Machine& machine, const std::vector<int>& ordinals);

// A value is slow if it lies more than so many deviations on the wrong side of the median. A deviation is 1.4826 times the median
// absolute deviation, which is the standard deviation where values are normal, and at least the part of the median by which equal
// GPUs are known to differ: of eight GPUs, chance alone often makes the former too small.
inline constexpr double most_deviations = 6;

struct Slow {
  std::string subject;  // "GPU 3", "GPU 1 to GPU 2"
  std::string figure;   // "HBM read"
  Unit unit = Unit::bytes_per_second;
  double value = 0, usual = 0;
  std::string usual_of;   // "the median of 8", "recorded on an H200"
  double deviations = 0;  // from `usual`
};

struct Judged {
  std::vector<Slow> slow;
  std::vector<std::string> unclear;  // two GPUs differ, and nothing tells which of them is slow
};

// Compares GPUs of one model, and paths of one kind, with each other and with those of `peers`, recorded on other machines. With
// less than three values the median is what is recorded of the model.
Judged judge(const Fabric& fabric, const std::vector<Fabric>& peers);

using Rows = std::vector<std::vector<std::string>>;  // the first one is the heading

struct FabricTable {
  std::string title;
  Rows rows;
};
// GPUs side by side, matrices (from the row to the column), and collectives. What was not measured has no table.
std::vector<FabricTable> fabric_tables(const Fabric& fabric);
// The matrix of one-way copies alone.
FabricTable copy_matrix(const Fabric& fabric);

// "GPU 3 is slow: HBM read 3.01 TB/s, 6 % below 3.21 TB/s (the median of 8), 7.9 deviations"
std::string line_of(const Slow& slow);
// Wrong results of collectives, a line for each operation.
std::vector<std::string> wrong_results(const Fabric& fabric);

// One value a row: figure, gpu, peer, bytes, value, unit.
Rows fabric_values(const Fabric& fabric);

}  // namespace aisp::peak
