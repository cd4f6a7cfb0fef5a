// SPDX-License-Identifier: Apache-2.0
// A selection in parts, each for a machine or an array task of its own. Nobody hands them out: every process cuts the whole
// selection alike and takes its part. So the cut depends on nothing but the pairs, what is recorded of them and the number of
// shards, never on the machine.
//
// A pair asks for shards in an order of its own, by hashes of its name with each shard's number, and gets the first that has
// room: none may take more than 5 % above its share of the time. Without that limit a pair would never move and one shard would
// work twice as long as another; cut anew by time alone, nearly all pairs would move with each one that is added. Long pairs ask
// first, because short ones fill what is left; times count in whole seconds, so that noise in a record moves nothing.
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
  std::int64_t seconds = 1;  // that its run takes
};

// The shard of each pair, from 0; every shard has at least one where there are as many pairs.
std::vector<int> cut(const std::vector<ShardedPair>& pairs, int shards);

// Returns the expected time of the pair, from the medians recorded of its variants on the slowest hardware that has a record.
int expected_seconds(const pair::Entry& entry, const std::vector<evidence::Expectations>& recorded);

struct Part {
  evidence::Shard shard;
  std::vector<const pair::Entry*> selected;
  std::int64_t seconds = 0, all_seconds = 0;  // expected, of the part and of all
};
// That of configuration.shard. Throws base::Error (usage) where there are more shards than pairs.
Part take_part(const std::vector<const pair::Entry*>& selected, const Configuration& configuration,
               const std::vector<evidence::Expectations>& recorded);

}  // namespace aisp::suite
