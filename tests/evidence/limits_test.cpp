// SPDX-License-Identifier: Apache-2.0
#include "evidence/limits.hpp"

#include <gtest/gtest.h>

namespace aisp::evidence {
namespace {

PairResult pair_of(VariantResult variant) {
  PairResult pair{.target = "ch07:transpose", .bound = Bound::memory};
  variant.timing.emplace().summary.median = 1;
  if (!variant.floor) variant.floor = Floor{.milliseconds = 0.1, .percent = 10, .limiter = "memory"};
  pair.variants.push_back(std::move(variant));
  return pair;
}

std::string limit_of(PairResult pair) {
  name_limits(pair);
  return pair.variants.front().floor->held_back_by;
}

Counters busy(double sm, double memory) { return {.sm_throughput_percent = sm, .memory_throughput_percent = memory}; }

TEST(Limits, WhatWasToldWithTheFloorStays) {
  EXPECT_EQ(
      limit_of(pair_of(
          {.floor = Floor{.percent = 95, .held_back_by = "software power cap, 1485 MHz", .limit_from = LimitFrom::throttling}})),
      "software power cap, 1485 MHz");
}

TEST(Limits, CountersNameTheBusiestUnit) {
  EXPECT_EQ(limit_of(pair_of({.counters = busy(20, 79)})), "memory");
  EXPECT_EQ(limit_of(pair_of({.counters = busy(85, 40)})), "instructions of the SM");
  EXPECT_EQ(limit_of(pair_of({.counters = busy(20, 30)})), "latency");
}

TEST(Limits, MoreTrafficThanDeclaredIsSaid) {
  VariantResult variant{.counters = busy(20, 79)};
  variant.cost = {.bytes = 1e9, .bytes_of = ByteKind::device_memory};
  variant.counters->dram_read_bytes = 2e9;
  variant.counters->dram_write_bytes = 0.5e9;
  EXPECT_EQ(limit_of(pair_of(variant)), "memory: 2.5x the bytes that must move");
  variant.counters->dram_read_bytes = 0.6e9;
  EXPECT_EQ(limit_of(pair_of(variant)), "memory");
}

TEST(Limits, AnIdleGpuWaits) {
  EXPECT_EQ(limit_of(pair_of({.gpu_busy_ms = 0.3})), "launches and waits");
  EXPECT_EQ(limit_of(pair_of({.gpu_busy_ms = 0.3, .counters = busy(10, 10)})), "launches and waits");
}

TEST(Limits, WithoutCountersTwoCausesRemain) {
  EXPECT_EQ(limit_of(pair_of({.gpu_busy_ms = 0.99})), "latency or extra work");
  PairResult chain = pair_of({});
  chain.bound = Bound::latency;
  EXPECT_EQ(limit_of(chain), "latency");
}

// ncu counts behind the process that timed, which had to conclude without counters.
TEST(Limits, LaterCountersReplaceWhatWasConcludedWithoutThem) {
  PairResult pair = pair_of({.gpu_busy_ms = 0.99});
  name_limits(pair);
  Floor& floor = *pair.variants.front().floor;
  ASSERT_EQ(floor.held_back_by, "latency or extra work");
  EXPECT_EQ(floor.limit_from, LimitFrom::times);
  pair.variants.front().counters = busy(85, 40);
  name_limits(pair);
  EXPECT_EQ(floor.held_back_by, "instructions of the SM");
  EXPECT_EQ(floor.limit_from, LimitFrom::counters);
  floor.held_back_by = "software power cap, 1485 MHz";
  floor.limit_from = LimitFrom::throttling;
  EXPECT_EQ(limit_of(pair), "software power cap, 1485 MHz");
}

TEST(Limits, OfNothingTimedNothingIsSaid) {
  PairResult pair = pair_of({});
  pair.variants.front().timing.reset();
  EXPECT_EQ(limit_of(pair), "");
}

}  // namespace
}  // namespace aisp::evidence
