// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <condition_variable>
#include <cstddef>
#include <list>
#include <mutex>
#include <optional>
#include <vector>

#include "run/wire/protocol.hpp"
#include "suite/placement.hpp"

namespace aisp::suite {

// Hands placements to workers. With `jobs` 1, one at a time in the order given. Otherwise first those that depend on their GPU
// alone, each on a GPU of its own, those with most variants first, which usually take longest; then those that must be alone on
// the machine while they are measured, in turns: while one has a quiet turn, no other works. Pairs that have been verified wait
// until no other works, have their quiet turns one after the other, and go on together. Pairs start in the same order in every
// run.
class Schedule {
 public:
  struct Assignment {
    const Placement* placement = nullptr;
    std::vector<int> gpus;
  };

  // Placements that cannot run are left out; the vector must outlive this.
  Schedule(const std::vector<Placement>& placements, std::size_t jobs);

  // Returns the next pair, whose turn it is; waits while others must end first. Nothing if none is left, or after stop().
  std::optional<Assignment> take();
  // Gives the pair's present turn up for another, and waits for that, but no longer than `patience_s`; returns whether it has
  // come. Does nothing for a pair that has it.
  bool turn(const Placement& placement, run::Turn wanted, double patience_s);
  void give_back(const Assignment& assignment);
  void stop();

 private:
  struct Running {
    Assignment assignment;
    run::Turn turn{};
    bool waits = true;  // the turn has not come
  };

  std::vector<const Placement*>& queue() { return together_.empty() ? alone_ : together_; }
  std::optional<Assignment> choose();
  std::optional<std::vector<int>> free_choice(const Placement& placement) const;
  void give_turns();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<const Placement*> together_;
  std::vector<const Placement*> alone_;
  std::list<Running> running_;  // in the order in which they asked for their turns
  bool stopped_ = false;
};

}  // namespace aisp::suite
