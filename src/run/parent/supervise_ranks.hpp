// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "run/parent/supervisor.hpp"
#include "run/parent/world.hpp"

namespace aisp::run {

// Returns how many processes the pair has: as many as it takes of its GPUs or, on the host, of the CPUs that this process may
// use, but not fewer than it needs.
int rank_count(const Pair& pair, std::size_t gpus, int cpus);

// Like supervise(), for a pair of several ranks: one child each, the i-th with the i-th of the request's GPUs and, in a world, in
// its i-th process. The result is rank 0's; what went wrong on another names it. Rank i writes its output to the log's name with
// ".rank_i".
SupervisedRun supervise_ranks(const pair::Entry& entry, const Request& request, const Supervision& supervision, int ranks,
                              World* world = nullptr);

}  // namespace aisp::run
