// SPDX-License-Identifier: Apache-2.0
// The results of `aisp peak --links`: the GPUs side by side, the path from each to each, and collectives of all of them.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "peak/figures.hpp"

namespace aisp::peak {

struct FabricGpu {
  int ordinal = 0;
  std::string uuid, name;
  std::vector<Figure> figures;  // measured on all GPUs at once
  const Figure* find(std::string_view id) const;
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
std::string_view name_of(Collective operation);  // "all_reduce"

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
  Key key;  // of all GPUs
  std::string measured_utc;
  std::vector<FabricGpu> gpus;
  std::vector<FabricPair> pairs;
  std::string nccl;  // version; empty: it was not opened
  std::vector<CollectiveTime> times;
  std::vector<std::string> missing;  // why parts were not measured, a sentence each
  const FabricPair* find(int from, int to) const;
};
// Tells how to see why NCCL failed or what it waits for: the process that measures has no terminal.
inline constexpr std::string_view nccl_advice = "; see nccl.log after NCCL_DEBUG=INFO NCCL_DEBUG_FILE=nccl.log aisp peak --links";

Key fabric_key(const machine::Machine& machine, const std::vector<int>& ordinals);

void to_json(nlohmann::json& json, const Fabric& fabric);
void from_json(const nlohmann::json& json, Fabric& fabric);  // throws base::Error for what no measurement gives

}  // namespace aisp::peak
