// SPDX-License-Identifier: Apache-2.0
// Times of one variant: how far they may be off, and how much of them the GPU worked.
#include <gtest/gtest.h>

#include "evidence/range.hpp"
#include "evidence/result.hpp"

namespace aisp::evidence {
namespace {

TEST(GpuBusy, IsThePartInWhichTheGpuWorked) {
  VariantResult variant{.name = "v"};
  variant.timing.emplace().summary.median = 8;
  EXPECT_FALSE(gpu_busy_percent(variant));
  variant.gpu_busy_ms = 6;
  EXPECT_DOUBLE_EQ(*gpu_busy_percent(variant), 75);
  variant.gpu_busy_ms = 8.1;
  EXPECT_DOUBLE_EQ(*gpu_busy_percent(variant), 100) << "it was another execution, and a little longer";
}

TEST(Ranges, MedianIntervalHasTheRanksOfTheBinomialDistribution) {
  std::vector<double> samples;
  for (int i = 1; i <= 21; ++i) samples.push_back(i);
  const Range range = median_range(samples);
  EXPECT_EQ(range.value, 11);
  EXPECT_EQ(range.low, 6);  // 6 and 16 cover 97.3 %, 7 and 15 92.2 %
  EXPECT_EQ(range.high, 16);
  const Range of_few = median_range(std::vector<double>{3, 1, 2});
  EXPECT_EQ(of_few.low, 1);
  EXPECT_EQ(of_few.high, 3);
}

TEST(Ranges, ATimeIsNoSurerThanAStepOfItsClock) {
  VariantResult variant;
  Timing& timing = variant.timing.emplace();
  timing.raw_times_ms.assign(30, 0.0023);
  timing.offset_ms = 0.0009;
  timing.clock_step_ms = 3.2e-5;
  timing.summary.median = 0.0014;
  const auto range = time_range(variant);
  EXPECT_NEAR(range->low, 0.001384, 1e-9);
  EXPECT_NEAR(range->high, 0.001416, 1e-9);
}

}  // namespace
}  // namespace aisp::evidence
