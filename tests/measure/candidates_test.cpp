// SPDX-License-Identifier: Apache-2.0
#include "measure/candidates.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <vector>

namespace aisp::measure {
namespace {

// Made-up candidates: each execution takes its time, and now and then far longer; a candidate of no time is refused.
class MadeUpCandidates {
 public:
  MadeUpCandidates(std::vector<double> times_ms, double noise, unsigned seed, double disturbed = 0)
      : times_ms_{std::move(times_ms)}, noise_{0, noise}, disturbed_{disturbed}, random_{seed} {}

  Chosen choose() {
    return choose_fastest(times_ms_.size(),
                          {.time_ms = [this](std::size_t i) { return time_ms(i); }, .now_s = [this] { return clock_s_; }});
  }
  double seconds() const { return clock_s_; }
  std::vector<std::size_t> order;

 private:
  std::optional<double> time_ms(std::size_t i) {
    order.push_back(i);
    if (times_ms_[i] == 0) return std::nullopt;
    const double ms = times_ms_[i] * (disturbed_(random_) ? 3 : 1 + noise_(random_));
    clock_s_ += 1.6e-3 * ms;  // with the pause and an emptied cache
    return ms;
  }

  std::vector<double> times_ms_;
  std::normal_distribution<double> noise_;
  std::bernoulli_distribution disturbed_;
  std::mt19937 random_;
  double clock_s_ = 0;
};

// 24 candidates of about 4 ms, of which the default is the second best by two percent.
std::vector<double> many() {
  std::vector<double> times_ms;
  for (int i = 0; i < 24; ++i) times_ms.push_back(4.08 + 0.06 * i);
  times_ms[17] = 4;
  return times_ms;
}

TEST(Candidates, TheFastestIsChosenAndRefusedOnesAreNot) {
  EXPECT_EQ(MadeUpCandidates({4, 1, 2}, 0.01, 1).choose().candidate, 1U);
  EXPECT_EQ(MadeUpCandidates({0, 3, 1, 0}, 0.01, 1).choose().candidate, 2U);
  EXPECT_EQ(MadeUpCandidates({0, 0}, 0.01, 1).choose().candidate, std::nullopt);
  EXPECT_EQ(MadeUpCandidates({}, 0.01, 1).choose().candidate, std::nullopt);
  EXPECT_EQ(MadeUpCandidates({5}, 0.01, 1).choose().candidate, 0U);
}

TEST(Candidates, TheEarliestOfThoseThatCannotBeToldApartIsChosen) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    EXPECT_EQ(MadeUpCandidates({1.005, 1, 1.003}, 0.002, seed).choose().candidate, 0U);
    // By more than counts as none, but no more than chance.
    EXPECT_EQ(MadeUpCandidates({1, 0.99, 1}, 0.2, seed).choose().candidate.value_or(9) < 3, true);
  }
  int of_default = 0;
  for (unsigned seed = 0; seed < 200; ++seed) of_default += MadeUpCandidates({1, 1}, 0.1, seed).choose().candidate == 0U;
  EXPECT_GE(of_default, 190);
}

TEST(Candidates, TwoSearchesAgree) {
  for (unsigned seed = 0; seed < 200; ++seed) EXPECT_EQ(MadeUpCandidates(many(), 0.005, seed).choose().candidate, 17U) << seed;
}

TEST(Candidates, ADisturbedSampleDecidesNothing) {
  int right = 0;
  for (unsigned seed = 0; seed < 200; ++seed) right += MadeUpCandidates({1, 1.2, 1.4}, 0.01, seed, 0.05).choose().candidate == 0U;
  EXPECT_EQ(right, 200);
}

TEST(Candidates, SlowOnesAreTimedOnceAndTheSearchEndsInTime) {
  std::vector<double> times_ms = many();
  times_ms[3] = 40;
  MadeUpCandidates machine{times_ms, 0.005, 1};
  EXPECT_EQ(machine.choose().candidate, 17U);
  EXPECT_EQ(std::ranges::count(machine.order, 3U), 1);
  EXPECT_LT(machine.seconds(), 1.4);
  MadeUpCandidates equal{std::vector<double>(24, 4.0), 0.005, 1};
  EXPECT_EQ(equal.choose().candidate, 0U);
  EXPECT_LT(equal.seconds(), 1.4) << "also where all are equally fast";
}

TEST(Candidates, RoundsHaveAnOrderOfTheirOwn) {
  MadeUpCandidates machine{{1, 1, 1, 1}, 0.001, 1};
  const Chosen chosen = machine.choose();
  ASSERT_GE(chosen.rounds, 12);
  std::set<std::vector<std::size_t>> orders;
  for (std::size_t round = 0; round < 12; ++round) {
    const auto begin = machine.order.begin() + static_cast<std::ptrdiff_t>(4 * round);
    orders.insert({begin, begin + 4});
  }
  EXPECT_GT(orders.size(), 6U);
}

TEST(Candidates, TimesAreToldOfEachCandidate) {
  const Chosen chosen = MadeUpCandidates({4, 0, 1}, 0, 1).choose();
  EXPECT_EQ(chosen.median_ms, (std::vector<double>{4, std::numeric_limits<double>::infinity(), 1}));
}

}  // namespace
}  // namespace aisp::measure
