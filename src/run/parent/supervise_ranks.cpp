// SPDX-License-Identifier: Apache-2.0
#include "run/parent/supervise_ranks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "run/parent/rank_hub.hpp"
#include "run/wire/blank.hpp"

namespace aisp::run {
namespace {

using evidence::PairResult;
using evidence::Status;

std::string with_rank(const std::string& name, int rank) {
  return rank == 0 || name.empty() ? name : fmt::format("{}.rank_{}", name, rank);
}

Request request_of_rank(const Request& request, const RankHub& hub, int rank, int ranks) {
  Request own = request;
  own.rank = rank;
  own.ranks = ranks;
  own.rank_hub = hub.address();
  own.rank_key = hub.key();
  if (!request.gpus.empty()) own.gpus = {request.gpus.at(static_cast<std::size_t>(rank))};
  return own;
}

Supervision supervision_of_rank(const Supervision& supervision, const RankHub& hub, int rank, double alone_limit_s) {
  Supervision own = supervision;
  own.log = with_rank(supervision.log.string(), rank);
  own.log_name = with_rank(supervision.log_name, rank);
  own.waits = [&hub, rank] { return hub.waits(rank); };
  own.alone = [&hub, rank, alone_limit_s] { return hub.alone_for_s(rank) > alone_limit_s; };
  if (rank != 0) own.on_progress = {};
  return own;
}

// Whether it ended only because another rank had.
bool is_consequence(const PairResult& result) {
  return std::ranges::any_of(result.problems, [](const evidence::Problem& problem) { return problem.check == "ranks"; });
}

bool ended_well(const PairResult& result) {
  return result.status == Status::passed && result.complete && result.problems.empty();
}

// Returns the rank whose end is the pair's.
int decisive(const std::vector<SupervisedRun>& outcomes, std::optional<int> culprit) {
  const PairResult& first = outcomes.front().result;
  if (outcomes.front().interrupted) return 0;
  const auto stopped = std::ranges::find_if(outcomes, &SupervisedRun::stopped);
  if (stopped != outcomes.end()) return static_cast<int>(stopped - outcomes.begin());
  const bool all_alike = first.complete && first.status != Status::passed && !is_consequence(first);
  if (all_alike && (!culprit || first.status == outcomes[static_cast<std::size_t>(*culprit)].result.status)) return 0;
  if (culprit) return *culprit;
  const auto bad = std::ranges::find_if(outcomes, [](const SupervisedRun& each) { return !ended_well(each.result); });
  return bad == outcomes.end() ? 0 : static_cast<int>(bad - outcomes.begin());
}

std::string ranks_that_timed_out(const std::vector<SupervisedRun>& outcomes) {
  std::string list;
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank)
    if (outcomes[rank].result.status == Status::timeout) list += (list.empty() ? "" : ", ") + std::to_string(rank);
  return list;
}

// Takes over how another rank ended. What names a rank already stays as it is.
void adopt_ending(PairResult& result, const PairResult& other, const std::string& rank) {
  const auto named = [&](const std::string& text) { return text.starts_with("rank ") ? text : rank + text; };
  result.status = other.status;
  result.complete = other.complete;
  result.reason = named(other.reason);
  result.timeout_stage = other.timeout_stage;
  result.timeout_limit_seconds = other.timeout_limit_seconds;
  result.timeout_duration_seconds = other.timeout_duration_seconds;
  result.best.clear();
  result.log = other.log;
  result.watchdog = other.watchdog;
  result.problems = other.problems;
  for (evidence::Problem& problem : result.problems) problem.message = named(problem.message);
}

}  // namespace

int rank_count(const Pair& pair, std::size_t gpus, int cpus) {
  const Ranks& ranks = pair.needs.ranks;
  const int room = pair.device == Device::gpu ? static_cast<int>(gpus) : cpus;
  return std::clamp(room, ranks.least, ranks.most);
}

SupervisedRun supervise_ranks(const pair::Entry& entry, const Request& request, const Supervision& supervision, int ranks,
                              World* world) {
  std::optional<RankHub> opened;
  try {
    if (world != nullptr) opened.emplace(ranks, world->address(), world->listener());
    else opened.emplace(ranks);
  } catch (const base::Error& error) {
    SupervisedRun outcome{.result = blank_result(entry, request)};
    outcome.result.status = Status::crashed;
    outcome.result.complete = false;
    outcome.result.reason = fmt::format("its ranks have no place to meet: {}", error.what());
    return outcome;
  }
  RankHub& hub = *opened;
  const double alone_limit_s = request.limits.teardown + supervision.grace_s;
  std::vector<SupervisedRun> outcomes(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      SupervisedRun& outcome = outcomes[static_cast<std::size_t>(rank)];
      Request own = request_of_rank(request, hub, rank, ranks);
      if (world != nullptr) own.machines = machine_count(world->processes(), ranks);
      const Supervision watch = supervision_of_rank(supervision, hub, rank, alone_limit_s);
      outcome = world != nullptr && rank > 0 ? world->supervise(entry, own, watch) : supervise(entry, own, watch);
      hub.ended(rank, outcome.result.status, outcome.result.reason);
    });
  for (std::thread& thread : threads) thread.join();

  SupervisedRun pair = outcomes.front();
  pair.result.gpus = request.gpus;
  const int chosen = decisive(outcomes, hub.culprit());
  const PairResult& other = outcomes[static_cast<std::size_t>(chosen)].result;
  if (chosen == 0 &&
      (ended_well(pair.result) || pair.interrupted || !(other.status == Status::crashed || other.status == Status::timeout)))
    return pair;
  const std::string late = ranks_that_timed_out(outcomes);
  const bool several_late = other.status == Status::timeout && late.find(',') != std::string::npos &&
                            !outcomes[static_cast<std::size_t>(chosen)].stopped;
  adopt_ending(pair.result, other, several_late ? fmt::format("ranks {}: ", late) : fmt::format("rank {}: ", chosen));
  return pair;
}

}  // namespace aisp::run
