// SPDX-License-Identifier: Apache-2.0
// Times loads with the stopwatches that time pairs.
#pragma once
#include <aisp/pair.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/device_memory.hpp"
#include "machine/machine.hpp"
#include "machine/nvml.hpp"
#include "measure/stopwatch.hpp"
#include "pair/session.hpp"
#include "peak/figures.hpp"

namespace aisp::peak {

using Work = std::function<void(Launch&)>;

// One way to load the machine: `amount` bytes or operations each time.
struct Load {
  std::string how;
  double amount = 0;
  Work work;
  bool tuned = false;  // candidates ran right before, to find it
};

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
  Figure best_rate(std::string_view id, std::vector<std::function<Load()>> loads, Cache cache = Cache::hot);

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

}  // namespace aisp::peak
