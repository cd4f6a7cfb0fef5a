// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "suite/placement.hpp"

namespace aisp::suite {

// Hands placements to workers. One at a time when `jobs` is 1: in the order given. Otherwise first those that wait for their GPU
// alone, each on a GPU of its own, those with most variants first, which take longest as a rule; then, one after the other, those
// that must be alone on the machine. The order in which pairs start is the same in every run.
class Schedule {
 public:
  struct Assignment {
    const Placement* placement = nullptr;
    std::vector<int> gpus;
  };

  // Placements that cannot run are left out; the vector must outlive this.
  Schedule(const std::vector<Placement>& placements, std::size_t jobs);

  // The next pair; waits while others must end first. Nothing when none is left, or after stop().
  std::optional<Assignment> take();
  void give_back(const Assignment& assignment);
  void stop();

 private:
  std::optional<Assignment> try_take();
  std::optional<std::vector<int>> free_choice(const Placement& placement) const;
  Assignment begin(std::vector<const Placement*>& queue, std::size_t position, std::vector<int> gpus);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<const Placement*> together_;
  std::vector<const Placement*> alone_;
  std::set<int> busy_gpus_;
  std::size_t running_ = 0;
  bool stopped_ = false;
};

}  // namespace aisp::suite
