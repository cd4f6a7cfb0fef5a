// SPDX-License-Identifier: Apache-2.0
// The schedules of chapter 4's pipeline_parallelism.
#include "ch04/pipeline.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>

namespace aisp::ch04::pipeline {
namespace {

constexpr int most_stages = 8, most_microbatches = 16;

template <class Check>
void for_all_shapes(const Check& check) {
  for (int stages = 2; stages <= most_stages; ++stages)
    for (int microbatches = 1; microbatches <= most_microbatches; ++microbatches) check(stages, microbatches);
}

TEST(Pipeline, BubbleIsThatOfTheFormula) {
  for_all_shapes([](int stages, int microbatches) {
    const double idle = (stages - 1.0) / (microbatches + stages - 1);
    EXPECT_NEAR(schedule(stages, microbatches, Policy::all_forward).bubble(microbatches), idle, 1e-12);
    EXPECT_NEAR(schedule(stages, microbatches, Policy::one_forward_one_backward).bubble(microbatches), idle, 1e-12);
  });
  EXPECT_NEAR(schedule(2, 1, Policy::all_forward).bubble(1), 0.5, 1e-12);
}

// An odd number leaves two.
TEST(Pipeline, GradientsOfWeightsLeaveOneUnitOfThreeOnTwoStages) {
  for (int microbatches = 2; microbatches <= most_microbatches; microbatches += 2)
    EXPECT_EQ(schedule(2, microbatches, Policy::split_backward).units, 3 * microbatches + 1) << microbatches;
}

TEST(Pipeline, OneForwardOneBackwardKeepsAsManyMicrobatchesAsStages) {
  for_all_shapes([](int stages, int microbatches) {
    EXPECT_EQ(schedule(stages, microbatches, Policy::all_forward).most_kept, microbatches);
    EXPECT_EQ(schedule(stages, microbatches, Policy::one_forward_one_backward).most_kept, std::min(stages, microbatches));
  });
}

// The pair queues steps in this order, so that what a step waits for must come before it.
TEST(Pipeline, EveryStepComesOnceAndAfterWhatItNeeds) {
  for (const Policy policy : {Policy::all_forward, Policy::one_forward_one_backward, Policy::split_backward})
    for_all_shapes([&](int stages, int microbatches) {
      std::map<std::pair<int, int>, std::string> seen;
      for (const Step& step : schedule(stages, microbatches, policy).steps) {
        std::string& own = seen[{step.stage, step.microbatch}];
        if (step.work == Work::forward) {
          EXPECT_EQ(own, "");
          if (step.stage > 0) {
            EXPECT_EQ((seen[{step.stage - 1, step.microbatch}]), "f");
          }
          own += 'f';
        } else if (step.work == Work::weight_gradients) {
          EXPECT_EQ(own, "fi");
          own += 'w';
        } else {
          EXPECT_EQ(own, "f");
          if (step.stage + 1 < stages) {
            EXPECT_THAT((seen[{step.stage + 1, step.microbatch}]), testing::StartsWith("fi"));
          }
          own += step.work == Work::backward ? "iw" : "i";
        }
      }
      ASSERT_EQ(seen.size(), static_cast<std::size_t>(stages * microbatches));
      for (const auto& [place, works] : seen) EXPECT_EQ(works, "fiw") << place.first << " " << place.second;
    });
}

}  // namespace
}  // namespace aisp::ch04::pipeline
