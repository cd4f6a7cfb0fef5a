// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "evidence/expectations/expectations.hpp"
#include "evidence/manifest.hpp"
#include "evidence/result.hpp"
#include "pair/registry.hpp"
#include "suite/settings/configuration.hpp"

namespace aisp::suite {

struct Selection {
  std::vector<const pair::Entry*> built;
  std::vector<const pair::NotBuilt*> not_built;
};

// Returns the pairs that `targets` name, each once, in the registry's order. A target is `all`, a chapter (`ch07`, also `7` and
// `ch7`), `chapter:name`, `name`, or either with globs (`ch1?:*gemm*`). No target means all. Throws base::Error: usage for a name
// that does not exist, with the nearest ones; nothing for a glob without a match and for a build without pairs.
Selection select(std::span<const pair::Entry> registry, std::span<const pair::NotBuilt> not_built,
                 const std::vector<std::string>& targets);
std::vector<const pair::Entry*> select(std::span<const pair::Entry> registry, const std::vector<std::string>& targets);
// Selects from this executable.
Selection select_here(const std::vector<std::string>& targets);

// Returns "./setup.sh --chapters ch01,ch05:mmap", which builds this executable's pairs and the targets; no target means all.
std::string build_command(const std::vector<std::string>& targets);
// Returns "not built; ./setup.sh --chapters ch01,ch05:mmap builds it": why the pair that the targets name does not run.
std::string not_built_reason(const std::vector<std::string>& targets);
// Returns "21 of 163, chosen with --chapters ch01"; empty if all are built.
std::string built_part();

// Throws base::Error (nothing), with the command that builds them, if the targets selected nothing that is built.
void demand_built(const Selection& selection, const std::vector<std::string>& targets);
// Returns skipped results of these pairs, for a run's reports.
std::vector<evidence::PairResult> results_of_not_built(const Selection& selection, const std::vector<std::string>& targets);

// Throws base::Error (usage) for sizes that a selected pair does not declare or cannot take, for --size of a name that a case of
// the sweep sets, and for too many points of a pair.
void check_sizes(const std::vector<const pair::Entry*>& selected, const Configuration& configuration);

// Returns, under --sweep, the pairs that declare cases; throws base::Error (nothing) if none does.
std::vector<const pair::Entry*> with_cases(std::vector<const pair::Entry*> selected, const Configuration& configuration);

// Returns the points that a run measures of the pair: each of its cases under --sweep, at each combination of the values that
// --size gives; one point at least. No two have one name.
std::vector<Point> points_of(const pair::Entry& entry, const Configuration& configuration);

// A selection in parts, each for a machine or an array task of its own. There is no coordinator: every process cuts the whole
// selection alike and takes its part. So the cut depends only on the pairs, their records and the number of shards, never on the
// machine.
//
// A pair tries shards in an order of its own, by hashes of its name with each shard's number, and gets the first that has room:
// none may take more than 5 % above its share of the time. Without that limit a pair would never move and one shard would work
// twice as long as another; cut anew by time alone, nearly all pairs would move with each one that is added. Long pairs ask
// first, because short ones fill the gaps; times count in whole seconds, so that noise in a record moves nothing.

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
