// SPDX-License-Identifier: Apache-2.0
#include "run/results/declarations.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace aisp::run {
namespace {

TEST(ImpossibleCost, NoneOfWhatPairsDeclare) {
  EXPECT_FALSE(impossible_cost({.flops = 1e9, .bytes = 1e9, .host_to_device = 1, .dependent_kernels = 2}, Device::gpu));
  EXPECT_FALSE(impossible_cost({.host_bytes = 1e9}, Device::gpu));
  EXPECT_FALSE(impossible_cost({.host_bytes = 1e9}, Device::host));
  EXPECT_FALSE(impossible_cost({.seconds = 1e-3}, Device::host));
  EXPECT_FALSE(impossible_cost({.flops = 1}, Device::host));
}

TEST(ImpossibleCost, NamesTheAmount) {
  EXPECT_EQ(impossible_cost({}, Device::gpu), "its declared cost is nothing at all");
  EXPECT_EQ(impossible_cost({.flops = 1e9, .bytes = -8}, Device::gpu), "its declared cost has -8 bytes");
  EXPECT_EQ(impossible_cost({.flops = std::numeric_limits<double>::quiet_NaN()}, Device::host),
            "its declared cost has nan flops");
  EXPECT_EQ(impossible_cost({.peer_bytes = std::numeric_limits<double>::infinity()}, Device::gpu),
            "its declared cost has inf peer_bytes");
  EXPECT_EQ(impossible_cost({.bytes = 64}, Device::host), "its declared cost has 64 bytes, but it runs on the host");
  EXPECT_EQ(impossible_cost({.host_bytes = 64, .dependent_kernels = 1}, Device::host),
            "its declared cost has 1 dependent_kernels, but it runs on the host");
}

TEST(ImpossibleCost, LooksIntoPhasesAndMoreMath) {
  EXPECT_FALSE(impossible_cost(in_turn({{.bytes = 1e9}, {.issue_slots = 1e9, .special_functions = 1}}), Device::gpu));
  EXPECT_EQ(impossible_cost(in_turn({{.bytes = 1}, {.l2_bytes = -1}}), Device::gpu),
            "in a phase its declared cost has -1 l2_bytes");
  EXPECT_EQ(impossible_cost(in_turn({{.bytes = 1}, {}}), Device::gpu), "in a phase its declared cost is nothing at all");
  Cost both = in_turn({{.bytes = 1}});
  both.flops = 1;
  EXPECT_EQ(impossible_cost(both, Device::gpu), "its declared cost has phases, and amounts beside them");
  EXPECT_EQ(impossible_cost({.more_math = {{-2, Math::fp8}}, .bytes = 1}, Device::gpu),
            "its declared cost has -2 flops of more math");
  EXPECT_EQ(impossible_cost({.shared_wavefronts = 1}, Device::host),
            "its declared cost has 1 shared_wavefronts, but it runs on the host");
}

}  // namespace
}  // namespace aisp::run
