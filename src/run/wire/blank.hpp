// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "evidence/result.hpp"
#include "pair/registry.hpp"
#include "run/wire/request.hpp"

namespace aisp::run {

// Convert a pair's declarations into the words of results.
evidence::Device recorded(Device device);
evidence::Bound recorded(Bound bound);
evidence::Start recorded(Start start);
evidence::Cache recorded(Cache cache);

// The name under which a result's sizes hold the number of its ranks: results of different numbers are not comparable.
inline constexpr const char* size_of_ranks = "ranks";
// The same for the number of machines that they were on, if these were several.
inline constexpr const char* size_of_machines = "machines";
// Adds both to the sizes of a result.
void add_ranks(evidence::PairResult& result, const Request& request);

// Returns a result with the entry's identity and nothing measured; `started_utc` is now.
evidence::PairResult blank_result(const pair::Entry& entry, const Request& request);

// The same with status skipped: `reason` is one plain clause, `advice` the way round it.
evidence::PairResult skipped_result(const pair::Entry& entry, const Request& request, std::string reason,
                                    std::string advice = {});

}  // namespace aisp::run
