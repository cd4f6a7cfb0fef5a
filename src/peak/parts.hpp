// SPDX-License-Identifier: Apache-2.0
// Measurements by part. Each figure is reported as soon as it is known, or why it is not. Not for use beyond src/peak.
#pragma once
#include <aisp/check.hpp>

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "peak/bench.hpp"
#include "peak/fabric/fabric.hpp"
#include "peak/levels/levels.hpp"

namespace aisp::peak {

inline constexpr std::size_t kib = 1024, mib = 1024 * kib, gib = 1024 * mib;

// Tells figures to whoever asked, and keeps one failure from costing the others.
class Teller {
 public:
  // `only`: ids of the figures that are asked for; empty: all.
  Teller(std::function<void(const Figure&)> tell, double time_up_s, std::vector<std::string> only)
      : tell_{std::move(tell)}, time_up_s_{time_up_s}, only_{std::move(only)} {}
  // `measure` returns the figure of that id. Not called for a figure that is not asked for, nor when the time is up.
  void figure(std::string_view id, const std::function<Figure()>& measure) const;

 private:
  std::function<void(const Figure&)> tell_;
  double time_up_s_;  // on base::monotonic_s()
  std::vector<std::string> only_;
};

void measure_memory(Bench& bench, const Teller& teller);
void measure_math(Bench& bench, const Teller& teller);
void measure_host_link(Bench& bench, const Teller& teller);
void measure_peers(Bench& bench, const Teller& teller);
void measure_collectives(const Teller& teller);
void measure_latency(Bench& bench, const Teller& teller);
void measure_host(Bench& bench, const Teller& teller);

// The host's need no bench.
MemoryLevels measure_gpu_levels(Bench& bench);
MemoryLevels measure_host_levels();

// Hears what is known so far, and what comes next.
using FabricTeller = std::function<void(const Fabric& so_far, const std::string& next)>;

// All GPUs that CUDA shows here, numbered from 0; without their names, figures, and names of paths.
Fabric measure_fabric(const FabricTeller& tell);
// Adds the curves, or why there are none.
void measure_curves(int gpus, Fabric& fabric, const FabricTeller& tell);
// At the largest size of the curves. Throws where elements are wrong.
CollectiveTime measure_collective(int gpus, Collective operation);

// Returns what a rank must have received of an operation with `chunk` elements for each of `ranks`.
struct Expected;
Expected expected_of(Collective operation, std::size_t chunk, int rank, int ranks);

}  // namespace aisp::peak
