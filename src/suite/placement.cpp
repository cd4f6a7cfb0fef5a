// SPDX-License-Identifier: Apache-2.0
#include "suite/placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "base/error.hpp"
#include "machine/needs.hpp"
#include "pair/all_variants.hpp"
#include "pair/host_dependent.hpp"
#include "suite/selection.hpp"

namespace aisp::suite {
namespace {

int find_ordinal(const machine::Machine& machine, const std::string& name) {
  for (const machine::Gpu& gpu : machine.gpus)
    if (name == std::to_string(gpu.ordinal)) return gpu.ordinal;
  std::vector<int> matches;
  for (const machine::Gpu& gpu : machine.gpus)
    if (name.size() > 4 && gpu.uuid.compare(0, name.size(), name) == 0) matches.push_back(gpu.ordinal);
  if (matches.size() == 1) return matches.front();
  if (matches.size() > 1)
    throw base::Error{base::Exit::usage, fmt::format("--gpus: '{}' fits {} GPUs; give more of the UUID", name, matches.size())};
  const std::size_t count = machine.gpus.size();
  throw base::Error{base::Exit::usage, fmt::format("--gpus: there is no GPU '{}'; this machine has {}", name,
                                                   count == 1 ? "one, 0" : fmt::format("{}, 0 to {}", count, count - 1))};
}

// Groups GPUs by kind, in the order given: comparisons over several GPUs mean nothing if these differ.
std::vector<std::vector<int>> by_kind(const machine::Machine& machine, const std::vector<int>& gpus) {
  std::vector<std::vector<int>> groups;
  for (const int ordinal : gpus) {
    const auto kind = [&](int other) { return machine.gpus[static_cast<std::size_t>(other)].name; };
    const auto group =
        std::find_if(groups.begin(), groups.end(), [&](const auto& members) { return kind(members.front()) == kind(ordinal); });
    if (group == groups.end()) groups.push_back({ordinal});
    else group->push_back(ordinal);
  }
  return groups;
}

std::vector<std::vector<int>> candidates(const Pair& pair, const machine::Machine& machine, const std::vector<int>& gpus) {
  if (pair.device == Device::host) return {{}};
  std::vector<std::vector<int>> sets;
  const Ranks& ranks = pair.needs.ranks;
  const auto one = static_cast<std::size_t>(std::max({1, pair.needs.gpus, ranks.least}));
  for (const std::vector<int>& group : by_kind(machine, gpus)) {
    const std::size_t count = std::max(one, std::min(group.size(), static_cast<std::size_t>(ranks.most)));
    if (count == 1)
      for (const int ordinal : group) sets.push_back({ordinal});
    else if (group.size() >= count) sets.emplace_back(group.begin(), group.begin() + static_cast<std::ptrdiff_t>(count));
  }
  // A single-GPU pair takes them in the order the user gave, whatever their kind.
  if (one == 1 && ranks.most == 1)
    std::sort(sets.begin(), sets.end(), [&](const auto& a, const auto& b) {
      return std::find(gpus.begin(), gpus.end(), a.front()) < std::find(gpus.begin(), gpus.end(), b.front());
    });
  return sets;
}

Placement place_one(const pair::Entry& entry, const machine::Machine& machine, const std::vector<int>& gpus,
                    const std::function<bool(Library)>& has_library) {
  const Pair& pair = *entry.pair;
  Placement placement{.entry = &entry, .variants = pair::all_variants(pair).size()};
  std::optional<machine::Obstacle> obstacle;
  for (std::vector<int>& set : candidates(pair, machine, gpus)) {
    const std::optional<machine::Obstacle> unmet = machine::unmet(pair.needs, pair.device, machine, set, has_library);
    if (!unmet) placement.choices.push_back(std::move(set));
    else if (!obstacle) obstacle = unmet;
  }
  if (!placement.choices.empty()) return placement;
  if (!obstacle) obstacle = machine::unmet(pair.needs, pair.device, machine, gpus, has_library);
  if (!obstacle) obstacle = {fmt::format("needs {} GPUs of one kind", pair.needs.gpus), {}};
  placement.obstacle = obstacle->reason;
  placement.advice = obstacle->advice;
  return placement;
}

using Processes = std::vector<run::Process>;

std::vector<int> ordinals_of(const std::vector<std::string>& uuids, const machine::Machine& machine) {
  std::vector<int> ordinals;
  for (const machine::Gpu& gpu : machine.gpus)
    if (std::ranges::find(uuids, gpu.uuid) != uuids.end()) ordinals.push_back(gpu.ordinal);
  return ordinals;
}

// Returns the reason for which these processes cannot be the ranks of a pair on GPUs.
std::optional<machine::Obstacle> unfit_gpus(const Processes& ranks) {
  std::set<std::string> taken;
  for (const run::Process& process : ranks) {
    if (process.gpu.uuid.empty())
      return machine::Obstacle{"needs a GPU for each rank, and " + run::name_of(process) + " has none",
                               "give each process a GPU of its own, as with srun --gpus-per-task=1"};
    if (!taken.insert(process.gpu.uuid).second)
      return machine::Obstacle{"needs a GPU for each rank, and " + run::name_of(process) + " has that of another process",
                               "start one process for each GPU"};
    if (process.gpu.name != ranks.front().gpu.name)
      return machine::Obstacle{fmt::format("needs GPUs of one kind: {} has {}, {} has {}", run::name_of(ranks.front()),
                                           ranks.front().gpu.name, run::name_of(process), process.gpu.name),
                               "start the processes on machines of one kind"};
  }
  return std::nullopt;
}

std::optional<machine::Obstacle> unmet_by_world(const Pair& pair, const machine::Machine& machine, const Processes& processes,
                                                const std::function<bool(Library)>& has_library) {
  const auto count = static_cast<int>(processes.size());
  if (count < pair.needs.ranks.least)
    return machine::Obstacle{fmt::format("needs {} processes, and the launcher started {}", pair.needs.ranks.least, count),
                             "start more of them"};
  if (pair.device == Device::host) return machine::unmet(pair.needs, pair.device, machine, {}, has_library);
  const Processes ranks(processes.begin(), processes.begin() + std::min(count, pair.needs.ranks.most));
  if (std::optional<machine::Obstacle> obstacle = unfit_gpus(ranks)) return obstacle;
  const std::vector<int> seen = ordinals_of(gpus_of_ranks(ranks, static_cast<int>(ranks.size())), machine);
  Needs needs = pair.needs;
  needs.ranks.least = 1;
  if (needs.peer_access && seen.size() < ranks.size())
    return machine::Obstacle{"needs peer access between the GPUs of its ranks, and process 0 does not see them all",
                             "start the processes on one machine, each with all of its GPUs visible"};
  return machine::unmet(needs, pair.device, machine, needs.peer_access ? seen : ordinals_of({ranks.front().gpu.uuid}, machine),
                        has_library);
}

}  // namespace

std::vector<int> choose_gpus(const machine::Machine& machine, const std::vector<std::string>& names) {
  std::vector<int> ordinals;
  if (names.empty()) {
    for (const machine::Gpu& gpu : machine.gpus) ordinals.push_back(gpu.ordinal);
    return ordinals;
  }
  if (machine.gpus.empty())
    throw base::Error{base::Exit::unfit, fmt::format("--gpus: there is no usable GPU here: {}", machine.cuda_error)};
  for (const std::string& name : names) {
    const int ordinal = find_ordinal(machine, name);
    if (std::find(ordinals.begin(), ordinals.end(), ordinal) == ordinals.end()) ordinals.push_back(ordinal);
  }
  return ordinals;
}

std::vector<std::string> gpus_of_ranks(const Processes& processes, int ranks) {
  std::vector<std::string> uuids;
  for (int rank = 0; rank < ranks; ++rank) uuids.push_back(processes[static_cast<std::size_t>(rank)].gpu.uuid);
  return uuids;
}

void place_ranks(std::vector<Placement>& placements, const machine::Machine& machine, const Processes& processes,
                 const std::function<bool(Library)>& has_library) {
  for (Placement& placement : placements) {
    const Pair& pair = *placement.entry->pair;
    if (pair.needs.ranks.most == 1) continue;
    placement.choices.clear();
    if (const auto obstacle = unmet_by_world(pair, machine, processes, has_library)) {
      placement.obstacle = obstacle->reason;
      placement.advice = obstacle->advice;
      continue;
    }
    const int ranks = std::min(static_cast<int>(processes.size()), pair.needs.ranks.most);
    placement.choices.push_back(pair.device == Device::host ? std::vector<int>{}
                                                            : ordinals_of(gpus_of_ranks(processes, ranks), machine));
  }
}

bool runs_alone(const Pair& pair, run::TimingMode mode) { return pair::host_dependent(pair) || mode == run::TimingMode::timer; }

// Whether others may work while the pair is verified. Profiles and first runs are measured too, and ranks do not ask as one.
static bool takes_turns(const Pair& pair, const Configuration& configuration) {
  return pair.needs.ranks.most == 1 && configuration.profile == run::ProfileLevel::none && !configuration.deep &&
         !configuration.cold_start;
}

std::vector<Placement> place(const std::vector<const pair::Entry*>& selected, const machine::Machine& machine,
                             const std::vector<int>& gpus, const Configuration& configuration,
                             const std::function<bool(Library)>& has_library) {
  std::vector<Placement> placements;
  for (const pair::Entry* entry : selected) {
    Placement placement = place_one(*entry, machine, gpus, has_library);
    placement.alone = runs_alone(*entry->pair, configuration.mode);
    placement.takes_turns = placement.alone && takes_turns(*entry->pair, configuration);
    for (Point& point : points_of(*entry, configuration)) {
      placement.point = std::move(point);
      placement.index = placements.size();
      placements.push_back(placement);
    }
  }
  return placements;
}

}  // namespace aisp::suite
