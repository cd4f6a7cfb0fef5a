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

// Hands placements to workers. With `jobs` 1, one at a time in the order given. Otherwise first those that depend on their GPU
// alone, each on a GPU of its own, those with most variants first, which usually take longest; then, one after the other, those
// that must be alone on the machine. Pairs start in the same order in every run.
class Schedule {
 public:
  struct Assignment {
    const Placement* placement = nullptr;
    std::vector<int> gpus;
  };

  // Placements that cannot run are left out; the vector must outlive this.
  Schedule(const std::vector<Placement>& placements, std::size_t jobs);

  // Returns the next pair; waits while others must end first. Nothing if none is left, or after stop().
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
