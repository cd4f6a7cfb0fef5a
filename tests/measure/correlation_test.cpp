// SPDX-License-Identifier: Apache-2.0
#include "measure/statistics/correlation.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "measure/noise.hpp"

namespace aisp::measure {
namespace {

std::vector<double> drift(double keep, std::size_t count, std::uint64_t seed) {
  Normal normal{seed};
  Autoregressive process{keep, normal};
  std::vector<double> values;
  for (std::size_t i = 0; i < count; ++i) values.push_back(process.next(normal));
  return values;
}

TEST(Autocorrelation, IsThatOfTheProcess) {
  for (const double keep : {0.0, 0.3, 0.5, 0.9}) EXPECT_NEAR(*rank_autocorrelation(drift(keep, 2000, 3)), keep, 0.07) << keep;
}

TEST(Autocorrelation, OneOutlierDoesNotHideIt) {
  std::vector<double> values = drift(0.9, 200, 3);
  values[100] = 1e6;
  EXPECT_GT(*rank_autocorrelation(values), 0.7);
}

TEST(Autocorrelation, OfFewOrEqualValuesThereIsNone) {
  EXPECT_FALSE(rank_autocorrelation(std::vector<double>(9, 1.0)));
  EXPECT_FALSE(rank_autocorrelation(std::vector<double>(50, 1.0)));
}

TEST(EffectiveCount, OfIndependentValuesIsTheirNumber) {
  int all = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) all += effective_count(drift(0, 100, seed)) == 100;
  EXPECT_GE(all, 190);
}

TEST(EffectiveCount, OfCorrelatedValuesIsAsTheoryHasIt) {
  // (1 - 0.8) / (1 + 0.8) of them.
  double sum = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) sum += effective_count(drift(0.8, 2000, seed));
  EXPECT_NEAR(sum / 20, 222, 45);
}

TEST(EffectiveCount, SeesSlowDriftBeneathNoise) {
  // No single lag shows it: a fifth of the variance drifts.
  int seen = 0;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    std::vector<double> values = drift(0, 300, seed);
    const std::vector<double> slow = drift(0.98, 300, seed + 100);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += 0.5 * slow[i];
    seen += effective_count(values) < 150;
  }
  EXPECT_GE(seen, 40);
}

}  // namespace
}  // namespace aisp::measure
