// SPDX-License-Identifier: Apache-2.0
#include "run/results/declarations.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>

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

TEST(ImpossibleCost, ExaminesEveryAmount) {
  const std::pair<const char*, Cost> costs[] = {{"flops", {.flops = -1}},
                                                {"bytes", {.bytes = -1}},
                                                {"l2_bytes", {.l2_bytes = -1}},
                                                {"shared_wavefronts", {.shared_wavefronts = -1}},
                                                {"issue_slots", {.issue_slots = -1}},
                                                {"special_functions", {.special_functions = -1}},
                                                {"host_to_device", {.host_to_device = -1}},
                                                {"device_to_host", {.device_to_host = -1}},
                                                {"peer_bytes", {.peer_bytes = -1}},
                                                {"host_bytes", {.host_bytes = -1}},
                                                {"dependent_kernels", {.dependent_kernels = -1}},
                                                {"seconds", {.seconds = -1}}};
  for (const auto& [name, cost] : costs)
    EXPECT_EQ(impossible_cost(cost, Device::gpu), std::string{"its declared cost has -1 "} + name);
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

std::optional<std::string> with(double limit, double error, Tolerance tolerance, std::size_t samples = 64) {
  evidence::VariantResult variant{.name = "tiled"};
  variant.accuracy = evidence::Accuracy{.relative_l2 = error, .limit_relative_l2 = limit, .samples = samples};
  return loose_limit(variant, tolerance);
}

TEST(LooseLimit, AThousandTimesTheErrorIsTheMost) {
  EXPECT_FALSE(with(1e-3, 1.01e-6, within(1e-3)));
  EXPECT_EQ(with(1e-3, 4e-7, within(1e-3)),
            "tiled: its tolerance allows a relative L2 error of 0.001, and 4e-07 was found; a limit near that would catch more");
  EXPECT_TRUE(with(1e-3, 0, within(1e-3)));
}

TEST(LooseLimit, OnlyOfLimitsThatThePairChose) {
  EXPECT_FALSE(with(1e-3, 0, automatic));
  EXPECT_FALSE(with(1e-3, 0, reduction_of(4096)));
  EXPECT_FALSE(with(0, 0, exact));
  EXPECT_FALSE(with(1e-3, 0, within(1e-3), 0)) << "nothing was compared";
  EXPECT_FALSE(loose_limit({.name = "tiled"}, within(1e-3)));
}

TEST(DeclaredCost, IsThatOfAllPhases) {
  const evidence::DeclaredCost one = declared({.flops = 3, .math = Math::fp8, .bytes = 5});
  EXPECT_EQ(one.math, "fp8");
  EXPECT_EQ(one.bytes_of, evidence::ByteKind::device_memory);
  const evidence::DeclaredCost several = declared(
      in_turn({{.flops = 1, .math = Math::bf16, .more_math = {{2, Math::fp32}}, .bytes = 10}, {.flops = 4, .bytes = 20}}));
  EXPECT_EQ(several.flops, 7);
  EXPECT_EQ(several.bytes, 30);
  EXPECT_EQ(several.math, "several");
  EXPECT_EQ(declared(in_turn({{.flops = 1, .math = Math::bf16}, {.flops = 1, .math = Math::bf16}})).math, "bf16");
  EXPECT_EQ(declared({.host_bytes = 8}).bytes_of, evidence::ByteKind::host_memory);
}

}  // namespace
}  // namespace aisp::run
