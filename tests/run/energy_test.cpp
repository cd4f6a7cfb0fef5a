// SPDX-License-Identifier: Apache-2.0
#include "run/results/assemble.hpp"

#include <gtest/gtest.h>

#include "run/child/verification/memory_account.hpp"

namespace aisp::run {
namespace {

TEST(Energy, EfficiencyIsOfTheDeclaredCost) {
  const auto energy = energy_of({{60, 0.1, 0.0005, 200}, {62, 0.1, 0.0005, 200}}, {.flops = 3e9, .bytes = 6e8}, {0.1});
  ASSERT_TRUE(energy);
  EXPECT_DOUBLE_EQ(energy->median_j, 0.305);
  EXPECT_DOUBLE_EQ(energy->low_j, 0.30);
  EXPECT_DOUBLE_EQ(energy->high_j, 0.31);
  EXPECT_DOUBLE_EQ(energy->average_w, 610);
  EXPECT_DOUBLE_EQ(energy->run_ms, 0.5);
  EXPECT_NEAR(energy->gflop_per_j, 3 / 0.305, 1e-9);
  EXPECT_NEAR(energy->gb_per_j, 0.6 / 0.305, 1e-9);
  EXPECT_EQ(energy->runs, 400u);
  EXPECT_FALSE(energy_of({}, {}, {}));
}

// All windows of the second round were hotter: what both share is no uncertainty of the ratio.
TEST(Energy, TheRatioIsTakenRoundByRound) {
  const evidence::EnergyRatio ratio = energy_ratio({{100, 1, 0.1, 10}, {120, 1, 0.1, 10}}, {{50, 1, 0.1, 10}, {60, 1, 0.1, 10}});
  EXPECT_DOUBLE_EQ(ratio.value, 2);
  EXPECT_DOUBLE_EQ(ratio.low, 2);
  EXPECT_DOUBLE_EQ(ratio.high, 2);
}

constexpr std::uint64_t mib = 1 << 20;

evidence::MemoryUse use(std::uint64_t buffers_mib, std::uint64_t reserved_mib, std::uint64_t driver_mib) {
  return {.device_allocated_bytes = buffers_mib * mib,
          .device_reserved_bytes = reserved_mib * mib,
          .device_driver_bytes = driver_mib * mib};
}

TEST(MemoryAccount, RoundingAndCodeAreNoDisagreement) {
  EXPECT_EQ(disagreement(use(100, 132, 136), 4), "");
  EXPECT_EQ(disagreement(use(100, 100, 100), 4), "");
}

TEST(MemoryAccount, AllocationsBesideTheBuffersAreNamedWithTheirSize) {
  const std::string text = disagreement(use(100, 132, 432), 4);
  EXPECT_NE(text.find("432 MiB"), std::string::npos) << text;
  EXPECT_NE(text.find("300 MiB were allocated beside them"), std::string::npos) << text;
}

TEST(MemoryAccount, TooLittleIsSomebodyElsesDoing) {
  EXPECT_NE(disagreement(use(500, 500, 100), 1).find("another process"), std::string::npos);
}

}  // namespace
}  // namespace aisp::run
