// SPDX-License-Identifier: Apache-2.0
#include "suite/schedule.hpp"

#include <algorithm>
#include <functional>

namespace aisp::suite {

Schedule::Schedule(const std::vector<Placement>& placements, std::size_t jobs) {
  for (const Placement& placement : placements)
    if (!placement.choices.empty()) (placement.alone || jobs <= 1 ? alone_ : together_).push_back(&placement);
  // A long pair that starts last would keep one GPU busy while the others are idle.
  std::ranges::stable_sort(together_, std::greater{}, [](const Placement* placement) { return placement->variants; });
}

std::optional<std::vector<int>> Schedule::free_choice(const Placement& placement) const {
  for (const std::vector<int>& choice : placement.choices)
    if (std::none_of(choice.begin(), choice.end(), [&](int gpu) { return busy_gpus_.contains(gpu); })) return choice;
  return std::nullopt;
}

Schedule::Assignment Schedule::begin(std::vector<const Placement*>& queue, std::size_t position, std::vector<int> gpus) {
  const Placement* placement = queue[position];
  queue.erase(queue.begin() + static_cast<std::ptrdiff_t>(position));
  busy_gpus_.insert(gpus.begin(), gpus.end());
  ++running_;
  return {placement, std::move(gpus)};
}

std::optional<Schedule::Assignment> Schedule::try_take() {
  for (std::size_t i = 0; i < together_.size(); ++i)
    if (auto gpus = free_choice(*together_[i])) return begin(together_, i, std::move(*gpus));
  if (together_.empty() && running_ == 0 && !alone_.empty()) return begin(alone_, 0, alone_.front()->choices.front());
  return std::nullopt;
}

std::optional<Schedule::Assignment> Schedule::take() {
  std::unique_lock lock{mutex_};
  for (;;) {
    if (stopped_ || (together_.empty() && alone_.empty())) return std::nullopt;
    if (auto assignment = try_take()) return assignment;
    changed_.wait(lock);
  }
}

void Schedule::give_back(const Assignment& assignment) {
  {
    const std::lock_guard lock{mutex_};
    for (const int gpu : assignment.gpus) busy_gpus_.erase(gpu);
    --running_;
  }
  changed_.notify_all();
}

void Schedule::stop() {
  {
    const std::lock_guard lock{mutex_};
    stopped_ = true;
  }
  changed_.notify_all();
}

}  // namespace aisp::suite
