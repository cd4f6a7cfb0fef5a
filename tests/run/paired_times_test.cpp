// SPDX-License-Identifier: Apache-2.0
#include "run/child/timing/paired_times.hpp"

#include <gtest/gtest.h>

#include <random>

namespace aisp::run {
namespace {

PairedTimes times(int count, double here_ms, double there_ms, double noise, unsigned seed) {
  std::mt19937 random{seed};
  std::uniform_real_distribution<> factor{1, 1 + noise};
  PairedTimes times;
  for (int i = 0; i < count; ++i) times.add(here_ms * factor(random), there_ms * factor(random));
  return times;
}

int told(int count, double here_ms, double there_ms, double noise) {
  int told = 0;
  for (unsigned seed = 0; seed < 1000; ++seed) told += times(count, here_ms, there_ms, noise, seed).longer_here();
  return told;
}

TEST(PairedTimes, TellsWhatTakesLongerWhateverTheNoise) {
  for (const int count : {6, 15, 40}) {
    EXPECT_EQ(told(count, 1.6, 1, 0), 1000);
    EXPECT_GT(told(count, 3, 1, 0.5), 990) << count;
    EXPECT_EQ(told(count, 1.4, 1, 0), 0) << "what neighbours may cost";
    EXPECT_EQ(told(count, 1, 3, 0), 0) << "faster here is no complaint";
  }
}

TEST(PairedTimes, SparesEqualTimesOnADisturbedMachine) {
  EXPECT_LT(told(6, 1, 1, 2), 12);
  EXPECT_LT(told(15, 1, 1, 2), 4);
  EXPECT_LT(told(40, 1, 1, 2), 2);
}

TEST(PairedTimes, SaysNothingOfMicroseconds) { EXPECT_FALSE(times(20, 0.004, 0.002, 0, 1).longer_here()); }
TEST(PairedTimes, SaysNothingOfFewTimes) { EXPECT_FALSE(times(5, 9, 1, 0, 1).longer_here()); }

TEST(PairedTimes, TakesTheNeighboursOfWatchedSamples) {
  const auto sample = [](double host_ms, bool watched, double wait_ms = 0) {
    return measure::Sample{.host_ms = host_ms, .cpu_wait_ms = wait_ms, .watched = watched};
  };
  const PairedTimes found =
      beside_watched({sample(1, true), sample(5, false), sample(2, true), sample(3, true), sample(9, false, 2)});
  EXPECT_EQ(found.there_ms, (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(found.here_ms, (std::vector<double>{5, 5, 7})) << "without the wait for a CPU";
}

}  // namespace
}  // namespace aisp::run
