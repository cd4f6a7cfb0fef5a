// SPDX-License-Identifier: Apache-2.0
#include "measure/statistics/ratio.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "measure/noise.hpp"
#include "measure/statistics/clock_step.hpp"
#include "measure/statistics/statistics.hpp"

namespace aisp::measure {
namespace {

using Verdict = evidence::Verdict;

struct Times {
  std::vector<double> baseline, variant;
};

Times draw(const Noise& noise, std::uint64_t seed, std::size_t rounds, double ratio) {
  const auto next = noise(seed);
  Times times;
  for (std::size_t i = 0; i < rounds; ++i) {
    const Round round = next();
    times.baseline.push_back(ratio * round[0]);
    times.variant.push_back(round[1]);
  }
  return times;
}

struct Tally {
  int trials = 0, covered = 0, wrong_verdicts = 0;
  double width = 0;
  // As many as three standard deviations of the binomial distribution allow where the share is `expected`.
  bool covers(double expected) const { return covered >= trials * expected - three_deviations(expected); }
  bool wrong_at_most(double expected) const { return wrong_verdicts <= trials * expected + three_deviations(expected); }

 private:
  double three_deviations(double share) const { return 3 * std::sqrt(share * (1 - share) * trials); }
};

// The truth is 1.5 for coverage, and 1, of which no verdict may come, for the verdicts.
Tally simulate(const Noise& noise, std::size_t rounds, int trials) {
  Tally tally{.trials = trials};
  for (int trial = 0; trial < trials; ++trial) {
    const auto seed = static_cast<std::uint64_t>(trial + 1);
    const Times times = draw(noise, seed, rounds, 1.5);
    const Interval interval = ratio_of_medians(times.baseline, times.variant, seed, {.resamples = 200});
    tally.covered += interval.low <= 1.5 && 1.5 <= interval.high;
    tally.width += interval.relative_width() / trials;
    Interval equal = interval;
    for (double* value : {&equal.value, &equal.low, &equal.high}) *value /= 1.5;
    tally.wrong_verdicts += verdict(equal) != Verdict::cannot_tell;
  }
  return tally;
}

// The table of docs/method.md. Its shares are of a thousand trials; these are fewer, so each bound leaves what chance may do.
TEST(Coverage, OfIndependentRoundsIsNinetyFivePercentAndTheIntervalAsNarrowAsTheBootstraps) {
  const Tally few = simulate(independent(0.01), 20, 300);
  EXPECT_TRUE(few.covers(0.945)) << few.covered;
  const Tally many = simulate(independent(0.01), 500, 200);
  EXPECT_TRUE(many.covers(0.945)) << many.covered;
  EXPECT_EQ(many.wrong_verdicts, 0);
  // 1.96 standard errors of two medians on both sides.
  const double ideal = 2 * 1.96 * 0.01 * std::sqrt(2 * 1.5708 / 500);
  EXPECT_LT(many.width, 1.05 * ideal);
  const Tally outliers = simulate(with_outliers(0.02), 100, 300);
  EXPECT_TRUE(outliers.covers(0.945)) << outliers.covered;
}

TEST(Coverage, OfRoundsThatResembleOneAnotherIsAtLeastNinetyPercent) {
  const Tally half = simulate(drifting(0.5, 0.01), 500, 200);
  EXPECT_TRUE(half.covers(0.935)) << half.covered;
  const Tally strong = simulate(drifting(0.9, 0.01), 500, 300);
  EXPECT_TRUE(strong.covers(0.935)) << strong.covered;
  EXPECT_GE(strong.covered, 270) << "90 %";
  EXPECT_TRUE(strong.wrong_at_most(0.001)) << strong.wrong_verdicts;
  const Tally hundred = simulate(drifting(0.9, 0.01), 100, 300);
  EXPECT_TRUE(hundred.covers(0.92)) << hundred.covered;
}

TEST(Coverage, AClockThatBothShareCostsLittleWidth) {
  const Tally shared = simulate(shared_clock(0.95, 0.015, 0.003), 500, 200);
  EXPECT_TRUE(shared.covers(0.96)) << shared.covered;
  const Tally alone = simulate(drifting(0.95, 0.015), 500, 50);
  EXPECT_LT(shared.width, alone.width / 5);
}

TEST(Coverage, OfTwoModesIsRightOnceManyTurnsWereSeen) {
  const Tally modes = simulate(two_modes(0.003), 500, 200);
  EXPECT_TRUE(modes.covers(0.93)) << modes.covered;
}

TEST(Ratio, CommonDriftDoesNotWidenTheInterval) {
  // Both variants slow down by 30 % over the run; their ratio stays 2 within a percent of noise.
  std::mt19937 random{7};
  std::normal_distribution<double> noise{1, 0.01};
  std::vector<double> baseline, variant;
  for (int round = 0; round < 60; ++round) {
    const double drift = 1 + 0.005 * round;
    baseline.push_back(2 * drift * noise(random));
    variant.push_back(1 * drift * noise(random));
  }
  const Interval together = ratio_of_medians(baseline, variant, 1);
  EXPECT_NEAR(together.value, 2, 0.02);
  EXPECT_LT(together.low, 2.0);
  EXPECT_GT(together.high, 2.0);
  EXPECT_LT(together.relative_width(), 0.06);

  std::vector<double> unrelated = variant;
  std::shuffle(unrelated.begin(), unrelated.end(), random);
  EXPECT_LT(together.relative_width(), ratio_of_medians(baseline, unrelated, 1).relative_width());
}

TEST(Ratio, TheLuckiestOfEqualVariantsHoldsTheTruth) {
  constexpr int trials = 200, variants = 8;
  int plain = 0, widened = 0;
  for (int trial = 0; trial < trials; ++trial) {
    const auto seed = static_cast<std::uint64_t>(trial);
    Normal normal{seed + 1};
    const auto times = [&] {
      std::vector<double> values(40);
      for (double& value : values) value = std::exp(0.02 * normal());
      return values;
    };
    const std::vector<double> baseline = times();
    std::vector<double> best = times();
    for (int i = 1; i < variants; ++i) {
      std::vector<double> other = times();
      if (median(other) < median(best)) best = other;
    }
    plain += ratio_of_medians(baseline, best, seed, {.resamples = 200}).low <= 1;
    widened += ratio_of_medians(baseline, best, seed, {.resamples = 200, .claims = variants}).low <= 1;
  }
  EXPECT_LT(plain, trials * 0.93) << "or there is nothing to widen for";
  EXPECT_GE(widened, trials * 0.95);
}

// Returns the readings of a clock of 32 ns steps for a kernel and the stopwatch around it, microseconds in, milliseconds out.
std::vector<double> read_in_steps(double true_us, std::size_t rounds, double noise_us, std::uint64_t seed) {
  constexpr double step_us = 0.032;
  Normal normal{seed};
  std::vector<double> readings;
  for (std::size_t i = 0; i < rounds; ++i) {
    const double start = normal.uniform() * step_us, end = start + true_us + noise_us * normal();
    readings.push_back((std::floor(end / step_us) - std::floor(start / step_us)) * step_us * 1e-3);
  }
  return readings;
}

constexpr double offset_us = 0.9;  // of the stopwatch
constexpr double probe_us = 1.3;

Interval ratio_in_steps(double baseline_us, double variant_us, std::size_t rounds, std::uint64_t seed, double accuracy_ms = 0) {
  const std::vector<double> probe = read_in_steps(probe_us + offset_us, rounds, 0.02, seed + 3000);
  const std::vector<double> baseline = read_in_steps(baseline_us + offset_us, rounds, 0.02, seed);
  const std::vector<double> variant = read_in_steps(variant_us + offset_us, rounds, 0.02, seed + 1000);
  const std::array<std::vector<double>, 3> all{baseline, variant, probe};
  const Correction correction{.probe = probe, .probe_work = probe_us * 1e-3, .accuracy = accuracy_ms, .step = clock_step_ms(all)};
  return ratio_of_medians(baseline, variant, seed, {.resamples = 200, .correction = correction});
}

TEST(Ratio, EqualShortKernelsAreEqualWithinTwoPercentInEveryProcess) {
  for (std::uint64_t process = 0; process < 40; ++process) {
    // Wherever between two steps the time lies.
    const double time_us = 1.4 + 0.032 * static_cast<double>(process) / 40;
    const Interval interval = ratio_in_steps(time_us, time_us, 500, process);
    EXPECT_NEAR(interval.value, 1, 0.02) << process;
    EXPECT_GT(interval.relative_width(), 0.001) << "the steps' own uncertainty";
  }
}

TEST(Ratio, SeesLessThanAStepOfTheClock) {
  int covered = 0;
  constexpr int trials = 200;
  for (std::uint64_t trial = 0; trial < trials; ++trial) {
    const Interval interval = ratio_in_steps(1.42, 1.40, 300, trial);
    covered += interval.low <= 1.42 / 1.40 && 1.42 / 1.40 <= interval.high;
  }
  EXPECT_GE(covered, trials * 0.88);  // the steps leave a small bias
}

TEST(Ratio, EqualReadingsHaveAnIntervalNonetheless) {
  const std::vector<double> baseline(30, 0.002304), variant(30, 0.002272);
  const std::array<std::vector<double>, 2> all{baseline, variant};
  const double step = clock_step_ms(all);
  EXPECT_GT(step, 0);
  const Interval interval =
      ratio_of_medians(baseline, variant, 1, {.correction = {.probe = {}, .probe_work = 0, .accuracy = 0, .step = step}});
  EXPECT_GT(interval.relative_width(), 0.0005);
}

TEST(Ratio, TheOffsetsUncertaintyIsInTheInterval) {
  // The probe scatters by 1 us around an offset of 4 us; the kernels do not scatter.
  Normal normal{5};
  std::vector<double> probe, baseline, variant;
  for (int round = 0; round < 40; ++round) {
    probe.push_back((5 + normal()) * 1e-3);
    baseline.push_back((14 + 0.01 * normal()) * 1e-3);
    variant.push_back((9 + 0.01 * normal()) * 1e-3);
  }
  const Interval noisy = ratio_of_medians(baseline, variant, 1, {.correction = {.probe = probe, .probe_work = 1e-3}});
  const std::vector<double> exact(probe.size(), median(probe));
  const Interval quiet = ratio_of_medians(baseline, variant, 1, {.correction = {.probe = exact, .probe_work = 1e-3}});
  EXPECT_GT(noisy.relative_width(), 5 * quiet.relative_width());
}

TEST(Ratio, HoldsWhatTheAccuracyOfTheOffsetAllows) {
  const Interval interval = ratio_in_steps(10, 2, 100, 1, 2e-4);
  EXPECT_NEAR(interval.value, 5, 0.1);
  EXPECT_LT(interval.low, 10.2 / 2.2 + 0.02);
  EXPECT_GT(interval.high, 9.8 / 1.8 - 0.02);
  EXPECT_EQ(verdict(interval), Verdict::faster);
  // An error common to both says nothing against equal kernels.
  EXPECT_LT(ratio_in_steps(1.4, 1.4, 500, 1, 2e-4).relative_width(), 0.02);
}

TEST(Ratio, WhatTakesNextToNothingHasNoVerdictAndNoAbsurdRatio) {
  const Interval nothing = ratio_in_steps(10, 0, 100, 1, 2e-4);
  EXPECT_FALSE(nothing.measurable);
  EXPECT_LE(nothing.value, 10.2 / 0.2);
  EXPECT_EQ(verdict(nothing), Verdict::cannot_tell);
  EXPECT_TRUE(ratio_in_steps(10, 1.4, 100, 1, 2e-4).measurable);
}

TEST(Ratio, OfMetricsThatAreZeroIsNoInterval) {
  const std::vector<double> zeros(10, 0.0), ones(10, 1.0);
  EXPECT_EQ(ratio_of_medians(zeros, ones, 1).value, 0);
  EXPECT_EQ(ratio_of_medians(zeros, ones, 1).high, 0);
}

TEST(Verdict, NeedsAnIntervalThatExcludesOne) {
  EXPECT_EQ(verdict({1.2, 1.1, 1.3, 20}), Verdict::faster);
  EXPECT_EQ(verdict({0.8, 0.7, 0.9, 20}), Verdict::slower);
  EXPECT_EQ(verdict({1.02, 0.99, 1.05, 20}), Verdict::cannot_tell);
  EXPECT_EQ(verdict({1.008, 1.007, 1.009, 20}), Verdict::cannot_tell) << "narrower than what alignment alone does";
  EXPECT_EQ(verdict({0.992, 0.991, 0.993, 20}), Verdict::cannot_tell);
}

TEST(Verdict, OfShortHostWorkIsBeyondWhatPlacementMakes) {
  Interval interval{.value = 0.945, .low = 0.897, .high = 0.999, .rounds = 50};
  EXPECT_EQ(verdict(interval), evidence::Verdict::slower);
  interval.placement = placement_of_short_host_work;
  EXPECT_EQ(verdict(interval), evidence::Verdict::cannot_tell);
  EXPECT_EQ(verdict({.value = 1.5, .low = 1.4, .high = 1.6, .rounds = 50, .placement = placement_of_short_host_work}),
            evidence::Verdict::faster);
  EXPECT_EQ(verdict({.value = 0.9, .low = 0.89, .high = 0.91, .rounds = 50, .placement = placement_of_short_host_work}),
            evidence::Verdict::slower);
}

TEST(Verdict, NeedsFiveRounds) {
  const std::vector<double> baseline{2, 2, 2, 2, 2}, variant{1, 1, 1, 1, 1};
  for (std::size_t rounds = 1; rounds < fewest_rounds; ++rounds)
    EXPECT_EQ(verdict(ratio_of_medians(std::span{baseline}.first(rounds), std::span{variant}.first(rounds), 1)),
              Verdict::cannot_tell)
        << rounds;
  EXPECT_EQ(verdict(ratio_of_medians(baseline, variant, 1)), Verdict::faster);
}

}  // namespace
}  // namespace aisp::measure
