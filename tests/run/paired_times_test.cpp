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

// How often of 500 a variant is told that takes a fifth of the time in a share of the rounds in which another has run on its
// inputs. All times differ by noise, and by a factor of up to `data` with their inputs.
int taken_over_of_500(int first, int later, double share, double data) {
  int told = 0;
  for (unsigned seed = 0; seed < 500; ++seed) {
    std::mt19937 random{seed};
    std::uniform_real_distribution<> even, of_data{1, data};
    std::normal_distribution<> noise{1, 0.1};
    const auto draw = [&](int count, double taken) {
      std::vector<double> times_ms;
      for (int i = 0; i < count; ++i) times_ms.push_back(of_data(random) * noise(random) * (even(random) < taken ? 0.2 : 1));
      return times_ms;
    };
    const std::vector<double> on_first = draw(first, 0);
    told += taken_over(on_first, draw(later, share));
  }
  return told;
}

TEST(TakenOver, IsToldIfTwoThirdsAreTakenOver) {
  EXPECT_GT(taken_over_of_500(60, 60, 0.67, 1), 460);
  EXPECT_GT(taken_over_of_500(30, 120, 0.67, 1), 400);
  EXPECT_GT(taken_over_of_500(25, 25, 1, 1.5), 495);
}

TEST(TakenOver, IsNotToldOfHonestTimes) {
  for (const double data : {1.0, 3.0}) {
    EXPECT_EQ(taken_over_of_500(10, 30, 0, data), 0);
    EXPECT_EQ(taken_over_of_500(100, 300, 0, data), 0);
  }
  EXPECT_FALSE(taken_over({9, 9, 9, 9}, {1, 1, 1, 1})) << "four are no proof";
}

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
