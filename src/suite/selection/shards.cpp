// SPDX-License-Identifier: Apache-2.0
#include "suite/selection/shards.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "pair/code.hpp"
#include "suite/selection/sweep_cases.hpp"

namespace aisp::suite {
namespace {

constexpr double slack = 0.05;

// From 39 pairs on an H100 with default settings: 3.9 s and 54 times the sum of the medians explain 65 % of the variance of their
// times. A pair without a record is assumed to be average.
constexpr double seconds_of_any_pair = 4, executions = 50;
constexpr int seconds_without_record = 6;

std::string hash_of(const std::string& target, int shard) { return base::sha256_hex(fmt::format("{} {}", target, shard)); }

// Returns the shards in the pair's order of preference. The hashes of the others stay when one is added.
std::vector<int> preferences(const std::string& target, int shards) {
  std::vector<std::pair<std::string, int>> hashes;
  for (int shard = 0; shard < shards; ++shard) hashes.emplace_back(hash_of(target, shard), shard);
  std::ranges::sort(hashes);
  std::vector<int> order;
  for (const auto& [hash, shard] : hashes) order.push_back(shard);
  return order;
}

// Returns a digest of everything that shards of one run must have in common.
std::string digest_of(const std::vector<const pair::Entry*>& selected, const std::vector<int>& shards) {
  base::Sha256 digest;
  for (std::size_t i = 0; i < selected.size(); ++i) {
    digest.update(fmt::format("{} {}\n", selected[i]->target(), shards[i]));
    for (const pair::CodeDigest& code : pair::code_of(*selected[i]).digests) digest.update(code.digest);
  }
  return digest.hex().substr(0, 16);
}

}  // namespace

std::vector<int> cut(const std::vector<ShardedPair>& pairs, int shards) {
  std::vector<std::size_t> order(pairs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return std::tuple{-pairs[i].seconds, pairs[i].target}; });
  std::int64_t total = 0;
  for (const ShardedPair& pair : pairs) total += pair.seconds;
  const double most = (1 + slack) * static_cast<double>(total) / shards;
  std::vector<std::int64_t> loads(static_cast<std::size_t>(shards), 0);
  std::vector<int> chosen(pairs.size(), 0);
  std::size_t left = pairs.size();
  for (const std::size_t i : order) {
    const std::vector<int> wanted = preferences(pairs[i].target, shards);
    const auto load = [&](int shard) { return loads[static_cast<std::size_t>(shard)]; };
    const auto empty = static_cast<std::size_t>(std::ranges::count(loads, 0));
    const auto has_room = [&](int shard) {
      return load(shard) == 0 || (left > empty && static_cast<double>(load(shard) + pairs[i].seconds) <= most);
    };
    auto found = std::ranges::find_if(wanted, has_room);
    if (found == wanted.end()) found = std::ranges::min_element(wanted, {}, load);
    chosen[i] = *found;
    loads[static_cast<std::size_t>(*found)] += pairs[i].seconds;
    --left;
  }
  return chosen;
}

int expected_seconds(const pair::Entry& entry, const std::vector<evidence::Expectations>& recorded) {
  double slowest_ms = 0;
  for (const evidence::Expectations& file : recorded) {
    const auto found = file.pairs.find(std::string{entry.name});
    if (file.chapter != entry.chapter || found == file.pairs.end()) continue;
    double sum_ms = found->second.baseline_median_ms;
    for (const auto& [name, variant] : found->second.variants) sum_ms += variant.median_ms;
    slowest_ms = std::max(slowest_ms, sum_ms);
  }
  if (slowest_ms == 0) return seconds_without_record;
  // An hour is longer than any pair may run, and keeps sums of damaged records within an int.
  return static_cast<int>(std::lround(std::min(seconds_of_any_pair + executions * slowest_ms / 1e3, 3600.0)));
}

Part take_part(const std::vector<const pair::Entry*>& selected, const Configuration& configuration,
               const std::vector<evidence::Expectations>& recorded) {
  const ShardNumber wanted = configuration.shard;
  if (static_cast<std::size_t>(wanted.count) > selected.size())
    throw base::Error{base::Exit::usage,
                      fmt::format("--shard {}/{}: {} selected, which is not enough for {}; use fewer shards", wanted.index,
                                  wanted.count, selected.size() == 1 ? "1 pair is" : fmt::format("{} pairs are", selected.size()),
                                  base::plural(static_cast<std::size_t>(wanted.count), "shard"))};
  std::vector<ShardedPair> pairs;
  for (const pair::Entry* entry : selected) {
    const auto points = static_cast<std::int64_t>(points_of(*entry, configuration).size());
    pairs.push_back({entry->target(), points * expected_seconds(*entry, recorded)});
  }
  const std::vector<int> shards = cut(pairs, wanted.count);
  Part part{.shard = {wanted.index, wanted.count, digest_of(selected, shards)}, .selected = {}};
  for (std::size_t i = 0; i < selected.size(); ++i) {
    part.all_seconds += pairs[i].seconds;
    if (shards[i] + 1 != wanted.index) continue;
    part.selected.push_back(selected[i]);
    part.seconds += pairs[i].seconds;
  }
  return part;
}

}  // namespace aisp::suite
