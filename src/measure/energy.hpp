// SPDX-License-Identifier: Apache-2.0
// How much energy a variant's executions take, from a counter that moves ten times a second.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "measure/energy_counter.hpp"

namespace aisp::measure {

// Windows per variant. The least and the largest of six hold the median with 97 %.
inline constexpr int energy_windows = 6;

struct EnergyOptions {
  double window_s = 1;
  double deadline_s = 60;  // no round of windows begins later than this after the start
  std::uint64_t seed = 42;
};

// Executions that have ended since the first one, and the GPU's own time from its start to the end of the last of them.
struct Progress {
  std::size_t runs = 0;
  double gpu_s = 0;
};

// The windows' access to the outside; tests give a made-up GPU.
struct EnergyCallbacks {
  // Queues `runs` executions of a variant and waits while more than a fixed number of earlier calls have not ended, so that the
  // GPU is never without work. Counts from the first call after `finish`.
  std::function<Progress(std::size_t variant, int runs)> queue;
  std::function<void()> finish;  // all that was queued
  std::function<std::optional<CounterUpdate>()> last_update;
  std::function<double()> now_s;
};

// Between two updates of the counter. Which executions the updates fell between is known to a batch only, so joules a run are the
// power times what the GPU took for one, by its own clock.
struct EnergyWindow {
  double joules = 0;
  double seconds = 0;
  double run_s = 0;
  std::size_t runs = 0;
  double joules_a_run() const { return joules / seconds * run_s; }
};

struct EnergyReadings {
  std::vector<std::vector<EnergyWindow>> windows;  // per variant, in the order of the rounds
  std::vector<double> steps_s;                     // between updates of the counter
  std::string obstacle;                            // why it ended early; the windows before stand
};

// Rounds of one window per variant, in a new random order every round. A window begins and ends at an update of the counter, so
// that what the counter holds belongs to the executions between the two; the step in which the variant changed is left out, and
// the next one too, because the counter may be late. `run_s`: about how long an execution takes.
EnergyReadings read_energy(const std::vector<double>& run_s, const EnergyOptions& options, const EnergyCallbacks& callbacks);

}  // namespace aisp::measure
