// SPDX-License-Identifier: Apache-2.0
#include "suite/schedule.hpp"

#include <algorithm>
#include <chrono>
#include <functional>
#include <tuple>

namespace aisp::suite {

using run::Turn;

Schedule::Schedule(const std::vector<Placement>& placements, std::size_t jobs) {
  for (const Placement& placement : placements)
    if (!placement.choices.empty()) (placement.alone || jobs <= 1 ? alone_ : together_).push_back(&placement);
  if (jobs <= 1) return;
  // A long pair that starts last would keep one GPU busy while the others are idle.
  std::ranges::stable_sort(together_, std::greater{}, [](const Placement* placement) { return placement->variants; });
  // Pairs of several GPUs find them free in the beginning only, and those that work while no other does need none.
  std::ranges::stable_sort(alone_, std::greater{}, [](const Placement* placement) {
    return std::tuple{!placement->begins_alone(), placement->choices.front().size(), placement->variants};
  });
}

std::optional<std::vector<int>> Schedule::free_choice(const Placement& placement) const {
  const auto busy = [&](int gpu) {
    return std::ranges::any_of(running_, [&](const Running& each) {
      return std::ranges::find(each.assignment.gpus, gpu) != each.assignment.gpus.end();
    });
  };
  for (const std::vector<int>& choice : placement.choices)
    if (std::ranges::none_of(choice, busy)) return choice;
  return std::nullopt;
}

std::optional<Schedule::Assignment> Schedule::choose() {
  std::vector<const Placement*>& next = queue();
  for (auto placement = next.begin(); placement != next.end(); ++placement)
    if (auto gpus = free_choice(**placement)) {
      Assignment chosen{*placement, std::move(*gpus)};
      next.erase(placement);
      return chosen;
    }
  return std::nullopt;
}

// Quiet turns come first once no pair works, so that those that have had theirs go on together.
void Schedule::give_turns() {
  const auto holds = [&](Turn turn) {
    return std::ranges::any_of(running_, [&](const Running& each) { return each.turn == turn && !each.waits; });
  };
  if (holds(Turn::quiet)) return;
  const auto next_quiet = std::ranges::find(running_, Turn::quiet, &Running::turn);
  if (next_quiet != running_.end() && !holds(Turn::work)) {
    next_quiet->waits = false;
  } else {
    for (Running& each : running_)
      if (each.turn == Turn::work) each.waits = false;
  }
  changed_.notify_all();
}

std::optional<Schedule::Assignment> Schedule::take() {
  std::unique_lock lock{mutex_};
  std::optional<Assignment> chosen;
  changed_.wait(lock, [&] { return stopped_ || (together_.empty() && alone_.empty()) || (chosen = choose()); });
  if (!chosen) return std::nullopt;
  const auto running = running_.insert(running_.end(), {*chosen, chosen->placement->begins_alone() ? Turn::quiet : Turn::work});
  give_turns();
  changed_.wait(lock, [&] { return stopped_ || !running->waits; });
  if (!running->waits) return chosen;
  running_.erase(running);
  return std::nullopt;
}

bool Schedule::turn(const Placement& placement, Turn wanted, double patience_s) {
  std::unique_lock lock{mutex_};
  const auto running = std::ranges::find(running_, &placement, [](const Running& each) { return each.assignment.placement; });
  if (running == running_.end()) return true;
  if (running->turn != wanted) {
    running->turn = wanted;
    running->waits = true;
    running_.splice(running_.end(), running_, running);
    give_turns();
  }
  return changed_.wait_for(lock, std::chrono::duration<double>{patience_s}, [&] { return !running->waits; });
}

void Schedule::give_back(const Assignment& assignment) {
  const std::lock_guard lock{mutex_};
  running_.remove_if([&](const Running& each) { return each.assignment.placement == assignment.placement; });
  give_turns();
  changed_.notify_all();  // its GPUs are free
}

void Schedule::stop() {
  const std::lock_guard lock{mutex_};
  stopped_ = true;
  changed_.notify_all();
}

}  // namespace aisp::suite
