// SPDX-License-Identifier: Apache-2.0
// Slots grouped on the GPU as on the CPU.
#include <gmock/gmock.h>
#include <aisp/launch.hpp>

#include <vector>

#include "device/gpu_test.hpp"
#include "moe/combine.cuh"
#include "moe/index.cuh"
#include "moe/routing.hpp"

namespace aisp::moe {
namespace {

using MoeIndex = GpuTest<8>;

void expect_grouped_as_on_the_host(const std::vector<int>& experts_of, std::size_t experts) {
  const int slots = static_cast<int>(experts_of.size());
  const auto filled = [](std::size_t count, int value) { return OnGpu<int>{std::vector<int>(count, value)}; };
  const OnGpu<int> ids{experts_of}, ranks = filled(experts_of.size(), -7), offsets = filled(experts + 1, -7);
  const OnGpu<int> slot_of_row = filled(experts_of.size(), -1), row_of_slot = filled(experts_of.size(), -7);
  const OnGpu<int> starts = filled(experts * static_cast<std::size_t>(tiles_of(slots)), -7);
  const OnGpu<unsigned> done{{0}};
  const Slots at{ids.get(), slots, static_cast<int>(experts), ranks.get(), starts.get(), offsets.get(), done.get()};
  const Grid grid{static_cast<unsigned>(tiles_of(slots)), tile_slots};
  const Grouped expected = group_by_expert(experts_of, experts);
  for (int run = 0; run < 2; ++run) {  // the counter of blocks is ready for the next run
    launch_kernel(nullptr, rank_slots_kernel, grid, at);
    launch_kernel(nullptr, place_slots_kernel, grid, at, slot_of_row.get(), row_of_slot.get());
    check(cudaDeviceSynchronize());
    EXPECT_EQ(offsets.host(), expected.offsets);
    EXPECT_EQ(slot_of_row.host(), expected.slot_of_row);
    EXPECT_EQ(row_of_slot.host(), expected.row_of_slot);
  }
}

std::vector<int> chosen(std::size_t tokens, const Choices& choices) {
  std::vector<int> experts(tokens * choices.top_k);
  choose_experts(experts, choices, 3);
  return experts;
}

TEST_F(MoeIndex, GroupsEveryKindOfRouting) {
  for (const Routing routing : {Routing::uniform, Routing::zipf, Routing::planted, Routing::same_experts})
    for (const std::size_t tokens : {1, 127, 128, 129, 3001})
      expect_grouped_as_on_the_host(chosen(tokens, {.experts = 64, .top_k = 8, .routing = routing}), 64);
}

TEST_F(MoeIndex, GroupsAmongOneExpertAndAmongTheMost) {
  expect_grouped_as_on_the_host(std::vector<int>(5000, 0), 1);
  expect_grouped_as_on_the_host(chosen(9000, {.experts = most_experts, .top_k = 6}), most_experts);
}

TEST_F(MoeIndex, DroppedSlotsHaveNoRow) {
  std::vector<int> experts_of = chosen(700, {.experts = 16, .top_k = 4});
  for (std::size_t slot = 0; slot < experts_of.size(); slot += 7) experts_of[slot] = -1;
  expect_grouped_as_on_the_host(experts_of, 16);
}

TEST_F(MoeIndex, CombiningLeavesOutDroppedRowsAndTheirNans) {
  constexpr int tokens = 3, top_k = 2, hidden = 16;
  std::vector<shared::bf16> rows;
  for (int row = 0; row < 5; ++row)
    rows.insert(rows.end(), hidden, shared::bf16{row == 4 ? __builtin_nanf("") : static_cast<float>(row + 1)});
  const OnGpu<shared::bf16> from{rows}, out{std::vector<shared::bf16>(tokens * hidden)};
  const OnGpu<int> row_of_slot{std::vector<int>{3, 0, -1, 1, -1, -1}};
  const OnGpu<float> weights{std::vector<float>{0.5f, 2, 9, 0.25f, 9, 9}};
  launch_kernel(nullptr, gather_reduce_kernel<top_k>, {tokens, 32}, reinterpret_cast<const uint4*>(from.get()), row_of_slot.get(),
                weights.get(), reinterpret_cast<uint4*>(out.get()), hidden / shared::packet);
  check(cudaDeviceSynchronize());
  const float expected[tokens] = {0.5f * 4 + 2 * 1, 0.25f * 2, 0};
  const std::vector<shared::bf16> combined = out.host();
  for (std::size_t i = 0; i < combined.size(); ++i) EXPECT_EQ(static_cast<float>(combined[i]), expected[i / hidden]) << i;
}

}  // namespace
}  // namespace aisp::moe
