// SPDX-License-Identifier: Apache-2.0
#include "suite/selection.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>

#include "base/error.hpp"

namespace aisp::suite {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Returns pairs of lengths as a whole suite has them: most take 4 to 6 seconds, few up to half a minute.
std::vector<ShardedPair> suite_of(int number) {
  std::mt19937 random{7};
  std::vector<ShardedPair> pairs;
  for (int i = 0; i < number; ++i)
    pairs.push_back({"ch01:pair" + std::to_string(i),
                     i % 20 == 0 ? 8 + static_cast<int>(random() % 20) : 4 + static_cast<int>(random() % 3)});
  return pairs;
}

std::map<std::string, int> shards_of(const std::vector<ShardedPair>& pairs, int shards) {
  const std::vector<int> chosen = cut(pairs, shards);
  std::map<std::string, int> by_target;
  for (std::size_t i = 0; i < pairs.size(); ++i) by_target[pairs[i].target] = chosen[i];
  return by_target;
}

int moved(const std::map<std::string, int>& before, const std::map<std::string, int>& after) {
  return static_cast<int>(std::ranges::count_if(before, [&](const auto& pair) { return after.at(pair.first) != pair.second; }));
}

TEST(Cut, NoShardTakesMuchLongerThanAnother) {
  const std::vector<ShardedPair> pairs = suite_of(264);
  double total = 0;
  for (const ShardedPair& pair : pairs) total += static_cast<double>(pair.seconds);
  for (const int shards : {2, 3, 8, 16}) {
    std::vector<double> loads(static_cast<std::size_t>(shards));
    const std::vector<int> chosen = cut(pairs, shards);
    for (std::size_t i = 0; i < pairs.size(); ++i)
      loads[static_cast<std::size_t>(chosen[i])] += static_cast<double>(pairs[i].seconds);
    EXPECT_LE(std::ranges::max(loads), 1.06 * total / shards) << shards;
  }
}

TEST(Cut, PairsStayWhenOneIsAdded) {
  const std::vector<ShardedPair> pairs = suite_of(264);
  const auto before = shards_of(pairs, 8);
  for (int added = 0; added < 20; ++added) {
    std::vector<ShardedPair> more = pairs;
    more.insert(more.begin() + added, {"ch02:added" + std::to_string(added), 4 + added});
    EXPECT_LE(moved(before, shards_of(more, 8)), 8) << added;
  }
}

TEST(Cut, IsTheSameInWhateverOrderPairsCome) {
  std::vector<ShardedPair> pairs = suite_of(50);
  const auto before = shards_of(pairs, 5);
  std::ranges::reverse(pairs);
  EXPECT_EQ(shards_of(pairs, 5), before);
}

TEST(Cut, NoShardIsEmpty) {
  for (const int pairs : {3, 5, 17})
    for (int shards = 1; shards <= pairs; ++shards) {
      std::vector<ShardedPair> some = suite_of(pairs);
      some.front().seconds = 1000;
      std::vector<int> chosen = cut(some, shards);
      std::ranges::sort(chosen);
      chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
      EXPECT_EQ(chosen.size(), static_cast<std::size_t>(shards)) << pairs;
    }
}

constexpr Pair sharded_pair{
    .teaches = "", .make = nullptr, .baseline = {"a"}, .optimized = variants({{"b"}}), .device = Device::host};
constexpr pair::Entry sharded_a{"ch01", "a", "", &sharded_pair}, sharded_b{"ch01", "b", "", &sharded_pair},
    sharded_c{"ch02", "a", "", &sharded_pair};

evidence::Expectations recorded(const char* hardware, double baseline_ms, double variant_ms) {
  evidence::Expectations file{.hardware = hardware, .chapter = "ch01", .pairs = {}};
  evidence::ExpectedPair& pair = file.pairs["a"];
  pair.baseline_median_ms = baseline_ms;
  pair.variants["b"].median_ms = variant_ms;
  return file;
}

TEST(ExpectedSeconds, AreOfTheSlowestHardwareWithARecord) {
  EXPECT_EQ(expected_seconds(sharded_a, {recorded("h200", 60, 40), recorded("h100", 150, 50)}), 4 + 10);
  EXPECT_EQ(expected_seconds(sharded_b, {recorded("h200", 60, 40)}), 6) << "without a record";
  EXPECT_EQ(expected_seconds(sharded_c, {recorded("h200", 60, 40)}), 6) << "of another chapter";
  EXPECT_EQ(expected_seconds(sharded_a, {recorded("h200", 1e300, 1e300)}), 3600);
}

TEST(TakePart, ShardsHaveEachPairOnce) {
  Configuration configuration;
  std::vector<const pair::Entry*> all;
  std::string cut;
  for (configuration.shard = {1, 3}; configuration.shard.index <= 3; ++configuration.shard.index) {
    const Part part = take_part({&sharded_a, &sharded_b, &sharded_c}, configuration, {});
    EXPECT_EQ(to_string(part.shard), std::to_string(configuration.shard.index) + "/3");
    EXPECT_TRUE(cut.empty() || part.shard.cut == cut);
    EXPECT_EQ(part.all_seconds, 18);
    cut = part.shard.cut;
    all.insert(all.end(), part.selected.begin(), part.selected.end());
  }
  EXPECT_THAT(all, testing::UnorderedElementsAre(&sharded_a, &sharded_b, &sharded_c));
  configuration.shard = {1, 2};
  EXPECT_NE(take_part({&sharded_a, &sharded_b, &sharded_c}, configuration, {}).shard.cut,
            take_part({&sharded_a, &sharded_b}, configuration, {}).shard.cut);
}

TEST(TakePart, ThereAreAsManyPairsAsShards) {
  Configuration configuration;
  configuration.shard = {1, 3};
  try {
    take_part({&sharded_a, &sharded_b}, configuration, {});
    ADD_FAILURE();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.status(), base::Exit::usage);
    EXPECT_THAT(error.what(), HasSubstr("2 pairs are selected"));
  }
}

using Variables = std::map<std::string, std::string>;

Configuration settled(const Variables& variables, Configuration configuration = {}, std::string* trouble = nullptr) {
  const std::string said = settle_shard(configuration, [&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
  if (trouble != nullptr) *trouble = said;
  return configuration;
}

std::vector<int> shard_in(const Variables& variables) {
  const Configuration configuration = settled(variables);
  return {configuration.shard.index, configuration.shard.count};
}

Variables slurm(const char* id, const char* count, const char* min, const char* step = "1") {
  return {{"SLURM_ARRAY_TASK_ID", id},
          {"SLURM_ARRAY_TASK_COUNT", count},
          {"SLURM_ARRAY_TASK_MIN", min},
          {"SLURM_ARRAY_TASK_STEP", step}};
}

TEST(SettleShard, TakesTheTaskOfAnArray) {
  EXPECT_THAT(shard_in({}), ElementsAre(1, 1));
  EXPECT_THAT(shard_in(slurm("0", "4", "0")), ElementsAre(1, 4));
  EXPECT_THAT(shard_in(slurm("4", "4", "1")), ElementsAre(4, 4));
  EXPECT_THAT(shard_in(slurm("7", "4", "1", "2")), ElementsAre(4, 4));
  EXPECT_THAT(shard_in({{"JOB_COMPLETION_INDEX", "0"}, {"JOB_COMPLETIONS", "3"}}), ElementsAre(1, 3));
  EXPECT_EQ(settled(slurm("1", "2", "0")).origins.at("shard"), "SLURM_ARRAY_TASK_ID");
}

TEST(SettleShard, TheUsersOwnWins) {
  Configuration configuration;
  apply(configuration, "shard", {"2/3"}, "flag");
  EXPECT_EQ(settled(slurm("0", "4", "0"), configuration).shard.count, 3);
}

TEST(SettleShard, RefusesWhatIsNoShardOfThatMany) {
  for (const Variables& wrong : {slurm("9", "3", "1"), slurm("2", "3", "1", "2"), slurm("x", "3", "1"), slurm("1", "-3", "1"),
                                 Variables{{"JOB_COMPLETION_INDEX", "3"}, {"JOB_COMPLETIONS", "3"}}})
    EXPECT_THROW(settled(wrong), base::Error) << testing::PrintToString(wrong);
}

TEST(SettleShard, SaysThatThereIsNoCount) {
  std::string trouble;
  EXPECT_EQ(settled({{"JOB_COMPLETION_INDEX", "2"}}, {}, &trouble).shard.count, 1);
  EXPECT_THAT(trouble, HasSubstr("JOB_COMPLETIONS is not"));
}

}  // namespace
}  // namespace aisp::suite
