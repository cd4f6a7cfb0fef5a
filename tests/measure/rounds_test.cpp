// SPDX-License-Identifier: Apache-2.0
#include "measure/rounds.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "measure/noise.hpp"

namespace aisp::measure {
namespace {

std::vector<double> times_of(const std::vector<Sample>& samples) {
  std::vector<double> times_ms;
  for (const Sample& sample : samples) times_ms.push_back(sample.raw_ms);
  return times_ms;
}

Interval speedup_of(const std::vector<Sample>& baseline, const std::vector<Sample>& variant, int resamples = 100) {
  return ratio_of_medians(times_of(baseline), times_of(variant), 1, {.resamples = resamples});
}

// A made-up machine: each sample takes its time and moves the clock on.
class Machine {
 public:
  explicit Machine(std::vector<double> times_ms, double noise = 0) : times_ms_{std::move(times_ms)}, noise_{0, noise} {}

  SamplingCallbacks callbacks() {
    return {.time =
                [this](std::size_t variant) {
                  order.push_back(variant);
                  const double time_ms = times_ms_[variant] * (1 + noise_(random_));
                  clock_s_ += time_ms / 1e3;
                  return Sample{.raw_ms = time_ms};
                },
            .speedup = [](const auto& baseline, const auto& variant) { return speedup_of(baseline, variant); },
            .after_round = [this](int, int) { ++rounds; },
            .now_s = [this] { return clock_s_; }};
  }
  std::vector<std::size_t> order;
  int rounds = 0;

 private:
  std::vector<double> times_ms_;
  std::normal_distribution<double> noise_;
  std::mt19937 random_{3};
  double clock_s_ = 0;
};

TEST(Rounds, EveryRoundHoldsEveryVariantOnceInChangingOrder) {
  Machine machine{{2, 1, 3}};
  const Sampling sampling = sample_rounds(3, {.min_rounds = 30, .fixed_rounds = true}, machine.callbacks());
  EXPECT_EQ(sampling.rounds, 30);
  EXPECT_EQ(sampling.stopped_because, evidence::StopReason::fixed_iterations);
  std::set<std::vector<std::size_t>> orders;
  for (std::size_t round = 0; round < 30; ++round) {
    std::vector<std::size_t> one(machine.order.begin() + static_cast<std::ptrdiff_t>(3 * round),
                                 machine.order.begin() + static_cast<std::ptrdiff_t>(3 * round + 3));
    orders.insert(one);
    std::sort(one.begin(), one.end());
    EXPECT_EQ(one, (std::vector<std::size_t>{0, 1, 2}));
  }
  EXPECT_GT(orders.size(), 3u);
  for (const auto& samples : sampling.samples) EXPECT_EQ(samples.size(), 30u);
}

TEST(Rounds, StopsWhenTheIntervalIsNarrow) {
  Machine quiet{{20, 10}, 0.001};
  const Sampling sampling = sample_rounds(2, {.min_rounds = 20, .budget_s = 100}, quiet.callbacks());
  EXPECT_EQ(sampling.stopped_because, evidence::StopReason::interval_narrow);
  EXPECT_EQ(sampling.rounds, 100) << "fewer are not told from a slow drift";
}

TEST(Rounds, ThatAreCheapAreManyHoweverNarrowTheInterval) {
  Machine quiet{{2, 1}, 0.001};
  EXPECT_NEAR(sample_rounds(2, {.min_rounds = 20, .budget_s = 100}, quiet.callbacks()).rounds, 100, 1) << "0.3 s of 3 ms";
  Machine quick{{0.02, 0.01}, 0.001};
  EXPECT_EQ(sample_rounds(2, {.min_rounds = 20, .budget_s = 100}, quick.callbacks()).rounds, 500);
  Machine in_a_hurry{{2, 1}, 0.001};
  EXPECT_NEAR(sample_rounds(2, {.min_rounds = 20, .budget_s = 0.09}, in_a_hurry.callbacks()).rounds, 30, 1) << "the budget";
}

struct Drifted {
  int trials = 0, covered = 0, wrong = 0;
};

// Equal variants that drift each on its own: a few rounds of a slow drift look narrow.
Drifted sampled_in_drift(int trials, double deviation, double sample_s) {
  Drifted drifted{.trials = trials};
  for (std::uint64_t trial = 1; trial <= static_cast<std::uint64_t>(trials); ++trial) {
    const auto next = drifting(0.9, deviation)(trial);
    double now_s = 0;
    int taken = 0;
    Round round{};
    const SamplingCallbacks callbacks{.time =
                                          [&](std::size_t variant) {
                                            if (taken++ % 2 == 0) round = next();
                                            now_s += sample_s;
                                            return Sample{.raw_ms = round[variant]};
                                          },
                                      .speedup = [](const auto& a, const auto& b) { return speedup_of(a, b, 50); },
                                      .after_round = [](int, int) {},
                                      .now_s = [&] { return now_s; }};
    const Sampling sampling = sample_rounds(2, {.budget_s = 3, .seed = trial}, callbacks);
    const Interval interval = speedup_of(sampling.samples[0], sampling.samples[1], 200);
    drifted.covered += interval.low <= 1 && 1 <= interval.high;
    drifted.wrong += verdict(interval) != evidence::Verdict::cannot_tell;
  }
  return drifted;
}

double ninety_percent(int trials) { return trials * 0.9 - 2 * std::sqrt(0.9 * 0.1 * trials); }

TEST(Rounds, StoppingAtANarrowIntervalDoesNotFavourDrift) {
  const Drifted drifted = sampled_in_drift(60, 0.005, 1e-3);
  EXPECT_GE(drifted.covered, ninety_percent(drifted.trials));
  EXPECT_EQ(drifted.wrong, 0);
}

TEST(Rounds, OfThirtyMillisecondsCoverNinetyPercentInDrift) {
  for (const double deviation : {0.005, 0.01}) {
    const Drifted drifted = sampled_in_drift(200, deviation, 15e-3);
    EXPECT_GE(drifted.covered, ninety_percent(drifted.trials)) << deviation;
    EXPECT_LE(drifted.wrong, 0.05 * drifted.trials) << deviation;
  }
}

TEST(Rounds, NoiseTakesMoreRoundsUntilTheBudgetEnds) {
  Machine noisy{{2, 1}, 0.3};
  const Sampling sampling = sample_rounds(2, {.min_rounds = 20, .budget_s = 0.6}, noisy.callbacks());
  EXPECT_EQ(sampling.stopped_because, evidence::StopReason::time_budget);
  EXPECT_GT(sampling.rounds, 150);
}

TEST(Rounds, AtLeastTheWantedRoundsEvenWhenTheBudgetIsTooSmall) {
  Machine slow{{2000, 1000}};
  EXPECT_GE(sample_rounds(2, {.min_rounds = 20, .budget_s = 1}, slow.callbacks()).rounds, 20);
}

TEST(Rounds, WithoutAlternationOneVariantFollowsTheOther) {
  Machine machine{{2, 1}};
  const Sampling sampling = sample_rounds(2, {.min_rounds = 10, .fixed_rounds = true, .alternate = false}, machine.callbacks());
  EXPECT_EQ(std::count(machine.order.begin(), machine.order.begin() + 10, 0u), 10);
  EXPECT_EQ(sampling.samples[1].size(), 10u);
}

TEST(Rounds, SameSeedSameOrder) {
  Machine first{{2, 1, 3}}, second{{2, 1, 3}}, third{{2, 1, 3}};
  sample_rounds(3, {.fixed_rounds = true, .seed = 5}, first.callbacks());
  sample_rounds(3, {.fixed_rounds = true, .seed = 5}, second.callbacks());
  sample_rounds(3, {.fixed_rounds = true, .seed = 6}, third.callbacks());
  EXPECT_EQ(first.order, second.order);
  EXPECT_NE(first.order, third.order);
}

TEST(Rounds, SlowOnesStopBeforeTheDeadlineWithAsManyAsFit) {
  Machine slow{{1000, 900}};
  const Sampling sampling = sample_rounds(2, {.min_rounds = 20, .deadline_s = 15}, slow.callbacks());
  EXPECT_EQ(sampling.rounds, 7) << "1.9 s each";
  EXPECT_EQ(sampling.stopped_because, evidence::StopReason::stage_limit);
  for (const auto& samples : sampling.samples) EXPECT_EQ(samples.size(), 7u);
  Machine fixed{{1000, 900}};
  EXPECT_EQ(sample_rounds(2, {.min_rounds = 20, .fixed_rounds = true, .deadline_s = 15}, fixed.callbacks()).rounds, 7);
}

TEST(Rounds, TheDeadlineTakesNothingFromThoseThatFit) {
  Machine machine{{100, 90}};
  const Sampling sampling = sample_rounds(2, {.min_rounds = 20, .deadline_s = 15}, machine.callbacks());
  EXPECT_GE(sampling.rounds, 20);
  EXPECT_NE(sampling.stopped_because, evidence::StopReason::stage_limit);
}

TEST(Rounds, WithFewerThanTheLeastNothingCouldBeClaimedSoTheyGoOn) {
  Machine slow{{4000, 3000}};
  const Sampling sampling = sample_rounds(2, {.min_rounds = 20, .deadline_s = 15}, slow.callbacks());
  EXPECT_EQ(sampling.rounds, least_rounds) << "whoever watches the stage ends it";
}

TEST(Rounds, InSequenceEachVariantHasItsShareOfTheDeadline) {
  Machine slow{{1000, 900}};
  const Sampling sampling = sample_rounds(2, {.min_rounds = 20, .deadline_s = 15, .alternate = false}, slow.callbacks());
  EXPECT_EQ(sampling.rounds, 7);
  EXPECT_EQ(sampling.stopped_because, evidence::StopReason::stage_limit);
  for (const auto& samples : sampling.samples) EXPECT_EQ(samples.size(), 7u);
}

}  // namespace
}  // namespace aisp::measure
