// SPDX-License-Identifier: Apache-2.0
// Measurements by part. Each figure is reported as soon as it is known, or why it is not. Not for use beyond src/peak.
#pragma once
#include <aisp/check.hpp>
#include <aisp/pair.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/device_memory.hpp"
#include "machine/machine.hpp"
#include "machine/nvml.hpp"
#include "measure/stopwatch.hpp"
#include "pair/session.hpp"
#include "peak/fabric/fabric.hpp"
#include "peak/figures.hpp"
#include "peak/levels/levels.hpp"

namespace aisp::peak {

using Work = std::function<void(Launch&)>;

// One way to load the machine: `amount` bytes or operations each time.
struct Load {
  std::string how;
  double amount = 0;
  Work work;
  bool tuned = false;  // candidates ran right before, to find it
};

// Times loads with the stopwatches that time pairs.
class Bench {
 public:
  // Measures the first GPU that CUDA shows here, or the host. `sustain_s`: 0 leaves the long loads out.
  Bench(Device device, int repetitions, double sustain_s);
  ~Bench();

  const machine::Gpu& gpu() const { return gpu_; }
  cudaStream_t stream() { return session_.launch().stream; }
  Setup& setup() { return session_; }
  // Whether there is time to look for the best way of a library.
  bool tunes() const { return sustain_s_ > 0; }

  // Median seconds of one execution, the stopwatch's own time taken off.
  double seconds(const Work& work, Cache cache = Cache::hot);
  // By CUPTI's records; throws Unsupported without CUPTI.
  double kernel_seconds(const Work& work);
  // The best of the loads in a short burst, and that one again for long. Loads that throw Unsupported are passed over; throws
  // the last one's reason when all do.
  Figure best_rate(std::vector<std::function<Load()>> loads, Cache cache = Cache::hot);

 private:
  double once(measure::Stopwatch& stopwatch, const Work& work);
  Sustained sustain(const Load& load, double burst_s);

  int repetitions_;
  double sustain_s_;
  machine::Gpu gpu_;
  std::optional<machine::NvmlDevice> nvml_;
  pair::Session session_;
  std::unique_ptr<measure::Stopwatch> hot_, cold_;
  double offset_s_ = 0;
};

inline constexpr std::size_t kib = 1024, mib = 1024 * kib, gib = 1024 * mib;

// Tells figures to whoever asked, and keeps one failure from costing the others.
class Teller {
 public:
  // `only`: ids of the figures that are asked for; empty: all.
  Teller(std::function<void(const Figure&)> tell, double time_up_s, std::vector<std::string> only)
      : tell_{std::move(tell)}, time_up_s_{time_up_s}, only_{std::move(only)} {}
  // `measure` returns the figure, without its id. Not called for a figure that is not asked for, nor when the time is up.
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
