// SPDX-License-Identifier: Apache-2.0
#include "evidence/cost_check.hpp"

#include <gmock/gmock.h>

namespace aisp::evidence {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr double l2 = 60e6;

VariantResult variant(const std::string& name, double declared_bytes, double read, double write) {
  VariantResult result;
  result.name = name;
  result.cost = {.flops = 0, .bytes = declared_bytes, .math = {}, .bytes_of = ByteKind::device_memory};
  Counters& counters = result.counters.emplace();
  counters.l2_bytes = l2;
  counters.drained = true;
  counters.flops_counted = true;
  counters.dram_read_bytes = read;
  counters.dram_write_bytes = write;
  return result;
}

PairResult pair(std::vector<VariantResult> variants, Bound bound = Bound::memory) {
  PairResult result;
  result.target = "ch07:copy";
  result.device = Device::gpu;
  result.bound = bound;
  result.variants = std::move(variants);
  return result;
}

TEST(CostCheck, AcceptsABestVariantNearItsDeclaration) {
  const CostCheck check = check_cost(pair({variant("direct", 1e9, 2e9, 1e9), variant("tiled", 1e9, 0.5e9, 0.55e9)}));
  EXPECT_THAT(check.faults(), IsEmpty());
  EXPECT_EQ(check.bytes->variant, "tiled");
  EXPECT_DOUBLE_EQ(check.bytes->ratio(), 1.05);
}

TEST(CostCheck, RefusesBytesThatNeedNotMove) {
  const CostCheck check = check_cost(pair({variant("direct", 1e9, 1e9, 0), variant("tiled", 1e9, 0.4e9, 0.4e9)}, Bound::compute));
  EXPECT_THAT(check.faults(),
              ElementsAre("tiled moves less than the declared cost: 8e+08 bytes measured against 1e+09 declared (-20 %)"));
}

TEST(CostCheck, RefusesADeclarationThatNoVariantComesNear) {
  const std::vector<VariantResult> variants{variant("direct", 1e9, 3e9, 0), variant("tiled", 1e9, 1.2e9, 0)};
  EXPECT_THAT(check_cost(pair(variants)).faults(),
              ElementsAre(HasSubstr("every variant moves more than the declared cost, tiled")));
  EXPECT_THAT(check_cost(pair(variants, Bound::compute)).faults(), IsEmpty());
}

TEST(CostCheck, AllowsMoreWhereTheWorkFitsL2) {
  EXPECT_THAT(check_cost(pair({variant("direct", 0.9 * l2, 2 * l2, 0)})).faults(), IsEmpty());
  EXPECT_THAT(check_cost(pair({variant("direct", 1.1 * l2, 2 * l2, 0)})).faults(), testing::SizeIs(1));
}

TEST(CostCheck, AllowsForWhatWasLeftInL2) {
  VariantResult undrained = variant("direct", 500e6, 250e6, 195e6);
  EXPECT_THAT(check_cost(pair({undrained})).faults(), testing::SizeIs(1));
  undrained.counters->drained = false;
  EXPECT_THAT(check_cost(pair({undrained})).faults(), IsEmpty());
  undrained.counters->dram_write_bytes = 135e6;
  EXPECT_THAT(check_cost(pair({undrained})).faults(), testing::SizeIs(1));
}

TEST(CostCheck, EveryVariantIsHeldToItsOwnDeclaration) {
  EXPECT_THAT(check_cost(pair({variant("fp32", 1e9, 1e9, 0), variant("fp16", 0.5e9, 0.5e9, 0)})).faults(), IsEmpty());
}

TEST(CostCheck, RefusesFlopsThatWereNotExecuted) {
  VariantResult tensor = variant("tensor", 1e9, 1e9, 0);
  tensor.cost.flops = 1e12;
  tensor.cost.math = "bf16";
  tensor.counters->flops = {{"tensor bf16", 0.85e12}, {"fp32", 0.01e12}};
  EXPECT_THAT(check_cost(pair({tensor})).faults(),
              ElementsAre("tensor computes less than the declared cost: 8.6e+11 FLOPs measured against 1e+12 declared (-14 %)"));
  tensor.counters->flops["fp32"] = 5e12;
  EXPECT_THAT(check_cost(pair({tensor})).faults(), IsEmpty());
}

TEST(CostCheck, TakesATypeThatWasNotSeenForUncounted) {
  VariantResult graph = variant("captured_graph", 1e9, 1e9, 0);
  graph.cost.flops = 1e9;
  graph.cost.math = "fp32";
  EXPECT_FALSE(check_cost(pair({graph})).flops);
  // A half-precision instruction that sets a constant is no work.
  graph.counters->flops = {{"fp16", 2e9}};
  EXPECT_FALSE(check_cost(pair({graph})).flops);
  graph.counters->flops["fp32"] = 0.5e9;
  EXPECT_DOUBLE_EQ(check_cost(pair({graph})).flops.value().ratio(), 0.5);
}

TEST(CostCheck, SaysWhyNothingIsCompared) {
  PairResult transfer = pair({variant("pageable", 1e9, 1e9, 0)}, Bound::transfer);
  transfer.variants.front().cost.bytes_of = ByteKind::host_to_device;
  EXPECT_THAT(check_cost(transfer).not_compared, HasSubstr("host to device"));
  PairResult refused = pair({VariantResult{}});
  refused.lost = {{LostKind::other, "no clock lock"},
                  {LostKind::counters_refused, "no counters: the driver lets only root read hardware counters"}};
  EXPECT_THAT(check_cost(refused).not_compared, HasSubstr("only root"));
  PairResult host = pair({VariantResult{}});
  host.device = Device::host;
  EXPECT_THAT(check_cost(host).not_compared, HasSubstr("host"));
}

TEST(CostCheck, FailsThePairWithBothNumbers) {
  PairResult off = pair({variant("tiled", 1e9, 0.4e9, 0.4e9)});
  judge_cost(off);
  EXPECT_EQ(off.status, Status::failed);
  EXPECT_THAT(off.reason, HasSubstr("8e+08 bytes measured against 1e+09 declared"));
  ASSERT_THAT(off.problems, testing::SizeIs(1));
  EXPECT_EQ(off.problems.front().check, "declared_cost");
}

TEST(CostCheck, TellsARunThatCountedNothing) {
  SuiteResult suite;
  EXPECT_FALSE(nothing_counted(suite)) << "no pair on a GPU was asked about";
  suite.pairs = {pair({VariantResult{}})};
  EXPECT_TRUE(nothing_counted(suite));
  suite.pairs.push_back(pair({variant("tiled", 1e9, 0.5e9, 0.5e9)}));
  EXPECT_FALSE(nothing_counted(suite));
  suite.pairs = {pair({VariantResult{}})};
  suite.pairs.front().device = Device::host;
  EXPECT_FALSE(nothing_counted(suite));
}

}  // namespace
}  // namespace aisp::evidence
