// SPDX-License-Identifier: Apache-2.0
#include "run/child/profiling/counting.hpp"

#include <gtest/gtest.h>
#include <aisp/pair.hpp>

namespace aisp::run {
namespace {

Pair pair_on(int gpus) {
  return {.teaches = "nothing",
          .make = nullptr,
          .baseline = {.name = "plain"},
          .optimized = variants({{.name = "better"}}),
          .needs = {.gpus = gpus}};
}

TEST(Counting, LeavesOutCollectivesOfSeveralGpus) {
  const Variant plain{.name = "plain"}, reduced{.name = "reduced", .needs = {.libraries = {Library::cublaslt, Library::nccl}}};
  EXPECT_FALSE(waits_for_other_gpus(pair_on(2), plain));
  EXPECT_TRUE(waits_for_other_gpus(pair_on(2), reduced));
  EXPECT_FALSE(waits_for_other_gpus(pair_on(1), reduced));
  Pair of_collectives = pair_on(2);
  of_collectives.needs.libraries[0] = Library::nccl;
  EXPECT_TRUE(waits_for_other_gpus(of_collectives, plain));
}

}  // namespace
}  // namespace aisp::run
