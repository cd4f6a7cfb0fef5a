// SPDX-License-Identifier: Apache-2.0
#include "run/results/speedups.hpp"

#include <gtest/gtest.h>

#include <array>

namespace aisp::run {
namespace {

using evidence::VariantRole;

class Speedups : public testing::Test {
 protected:
  void add(std::string_view name, VariantRole role, double time_ms) {
    const std::size_t i = timed_.size();
    variants_.at(i).name = name;
    results_.at(i).name = name;
    results_.at(i).role = role;
    std::vector<measure::Sample> samples(20);
    for (std::size_t k = 0; k < samples.size(); ++k) {
      samples[k].round = static_cast<int>(k);
      samples[k].raw_ms = time_ms * (1 + 1e-4 * static_cast<double>(k % 5));
    }
    results_.at(i).timing = timing_of(samples, correction_, {});
    timed_.push_back({&variants_.at(i), &results_.at(i), std::move(samples)});
  }
  Claims claims(std::string_view lesson) { return claim_speedups(timed_, {"", 1}, correction_, lesson); }

  const std::vector<double> probe_ = std::vector<double>(20, 0.003);
  const measure::Correction correction_{.probe = probe_, .probe_work = 0.001, .accuracy = 2e-4, .step = 1e-4};
  std::array<Variant, 6> variants_{};
  std::array<evidence::VariantResult, 6> results_{};
  std::vector<Timed> timed_;
};

TEST_F(Speedups, OverTheBaselineTheStepBeforeAndTheLibrary) {
  add("plain", VariantRole::baseline, 8);
  add("step", VariantRole::optimized, 4);
  add("best", VariantRole::optimized, 2);
  add("beside", VariantRole::control, 1);
  add("library", VariantRole::library, 4);
  const Claims found = claims("step");
  EXPECT_EQ(found.best, "best") << "a control claims nothing";
  EXPECT_TRUE(found.warnings.empty());
  EXPECT_FALSE(results_[0].speedup);
  EXPECT_NEAR(results_[2].speedup->value, 4, 0.02);
  EXPECT_EQ(results_[1].gain->over, "plain");
  EXPECT_EQ(results_[2].gain->over, "step");
  EXPECT_NEAR(results_[2].gain->ratio.value, 2, 0.02);
  EXPECT_FALSE(results_[3].gain);
  EXPECT_NEAR(results_[2].library_share->percent, 200, 2);
  EXPECT_NEAR(results_[0].library_share->percent, 50, 1);
  EXPECT_FALSE(results_[4].library_share);
}

TEST_F(Speedups, WhatFailedClaimsNothing) {
  add("plain", VariantRole::baseline, 8);
  add("wrong", VariantRole::optimized, 1);
  results_[1].status = evidence::Status::failed;
  EXPECT_EQ(claims("wrong").best, "");
  EXPECT_FALSE(results_[1].speedup);
}

TEST_F(Speedups, WhatIsTooShortIsNotTheBest) {
  add("plain", VariantRole::baseline, 0.02);
  add("measurable", VariantRole::optimized, 0.012);
  add("tiny", VariantRole::optimized, 0.0025);
  const Claims found = claims("measurable");
  EXPECT_EQ(found.best, "measurable");
  ASSERT_EQ(found.warnings.size(), 1u);
  EXPECT_EQ(found.warnings[0].find("no verdict for tiny"), 0u) << found.warnings[0];
}

TEST_F(Speedups, ALossIsTheSpeedWhereItIsSureAndMoreThanNone) {
  add("plain", VariantRole::baseline, 2);
  add("slower", VariantRole::optimized, 2.1);
  add("level", VariantRole::optimized, 2.01);
  const auto loss = [&](std::size_t member, std::size_t best) {
    return loss_to(timed_[member], timed_[best], {"", 1}, correction_);
  };
  ASSERT_TRUE(loss(0, 1));
  EXPECT_NEAR(loss(0, 1)->value, 2 / 2.1, 1e-3);
  EXPECT_FALSE(loss(1, 0));
  EXPECT_FALSE(loss(0, 2)) << "half a percent is none";
}

TEST(CallsToRepay, AreThoseThatSaveWhatCompilingTook) {
  EXPECT_EQ(calls_to_repay(500, 1.5, 1), 1000);
  EXPECT_EQ(calls_to_repay(501, 2, 1), 501);
  EXPECT_EQ(calls_to_repay(0.5, 2, 1), 1) << "a call is made or not";
  EXPECT_FALSE(calls_to_repay(500, 1, 1));
  EXPECT_FALSE(calls_to_repay(500, 1, 2));
}

}  // namespace
}  // namespace aisp::run
