// SPDX-License-Identifier: Apache-2.0
// A selection in parts, each for a machine or an array task of its own. There is no coordinator: every process cuts the whole
// selection alike and takes its part. So the cut depends only on the pairs, their records and the number of shards, never on the
// machine.
//
// A pair tries shards in an order of its own, by hashes of its name with each shard's number, and gets the first that has room:
// none may take more than 5 % above its share of the time. Without that limit a pair would never move and one shard would work
// twice as long as another; cut anew by time alone, nearly all pairs would move with each one that is added. Long pairs ask
// first, because short ones fill the gaps; times count in whole seconds, so that noise in a record moves nothing.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "evidence/expectations/expectations.hpp"
#include "evidence/manifest.hpp"
#include "pair/registry.hpp"
#include "suite/settings/configuration.hpp"

namespace aisp::suite {

struct ShardedPair {
  std::string target;
  std::int64_t seconds = 1;  // expected time of its run
};

// Returns the shard of each pair, from 0; no shard is empty if there are enough pairs.
std::vector<int> cut(const std::vector<ShardedPair>& pairs, int shards);

// Returns the expected time of the pair, from the medians recorded of its variants on the slowest hardware that has a record.
int expected_seconds(const pair::Entry& entry, const std::vector<evidence::Expectations>& recorded);

struct Part {
  evidence::Shard shard;
  std::vector<const pair::Entry*> selected;
  std::int64_t seconds = 0, all_seconds = 0;  // expected times of the part and of all
};
// Returns the part of configuration.shard. Throws base::Error (usage) if there are more shards than pairs.
Part take_part(const std::vector<const pair::Entry*>& selected, const Configuration& configuration,
               const std::vector<evidence::Expectations>& recorded);

}  // namespace aisp::suite
