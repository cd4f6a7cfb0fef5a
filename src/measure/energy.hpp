// SPDX-License-Identifier: Apache-2.0
// Measures the energy of a variant's executions by a counter that updates ten times a second.
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

// The number of ended executions, and the GPU's own time from the start of the first to the end of the last.
struct EnergyProgress {
  std::size_t runs = 0;
  double gpu_s = 0;
};

// The windows' access to the outside; tests give a made-up GPU.
struct EnergyCallbacks {
  // Queues `runs` executions of a variant and waits while more than a fixed number of earlier calls have not ended, so that the
  // GPU is never without work. Counts from the first call after `finish`.
  std::function<EnergyProgress(std::size_t variant, int runs)> queue;
  std::function<void()> finish;  // waits for all queued work
  std::function<std::optional<CounterUpdate>()> last_update;
  std::function<double()> now_s;
};

// The time between two updates of the counter. The executions at its ends are known to a batch only, so joules a run are the
// power times the GPU's own time of one run.
struct EnergyWindow {
  double joules = 0;
  double seconds = 0;
  double run_s = 0;
  std::size_t runs = 0;
  double joules_a_run() const { return joules / seconds * run_s; }
};

struct EnergyReadings {
  std::vector<std::vector<EnergyWindow>> windows;  // per variant, in the order of the rounds
  std::vector<double> steps_s;                     // times between updates of the counter
  std::string obstacle;                            // why it ended early; earlier windows remain valid
};

// Takes rounds of one window per variant, in a new random order every round. A window begins and ends at an update of the
// counter, so that the counter's difference belongs to the executions between them; the step in which the variant changed is left
// out, and the next one too, because the counter may be late. `run_s`: approximate durations of executions.
EnergyReadings read_energy(const std::vector<double>& run_s, const EnergyOptions& options, const EnergyCallbacks& callbacks);

}  // namespace aisp::measure
