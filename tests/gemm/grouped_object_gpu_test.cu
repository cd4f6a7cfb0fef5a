// SPDX-License-Identifier: Apache-2.0
// A grouped GEMM in one object: offsets that the GPU has, pitches, a part of the multiprocessors.
#include <gmock/gmock.h>

#include "gemm/grouped.hpp"
#include "gemm_case.hpp"
#include "ragged_rows.hpp"

namespace aisp::gemm {
namespace {

using GroupedObject = HopperTest;
using AlongK = Operand<bf16>;
using RowMajorB = Operand<bf16, Major::mn>;
using Cooperative = Config<AlongK, AlongK, InTensorCores, Shape{.tile_n = 128, .stages = 4}>;
using InPairs = Config<AlongK, RowMajorB, InTensorCores, Shape{.tile_n = 128, .stages = 4, .cluster = 2}>;
using Pingpong = Config<AlongK, AlongK, InTensorCores, Shape{.tile_m = 64, .tile_n = 64, .stages = 4, .pingpong = true}>;

template <class C>
void expect_groups(const std::vector<int>& offsets, std::size_t n, std::size_t k, const GroupedOptions& options = {}) {
  const RaggedRows<C> rows{offsets, n, k, options.pitches};
  for (const int band : {1, 4}) {
    GroupedOptions banded = options;
    banded.band = band;
    const auto results = rows.run(offsets, banded);
    EXPECT_TRUE(right(results, n, rows.expected())) << band;
    expect_shifts_seen(results, n, rows.expected());
  }
}

TEST_F(GroupedObject, EveryGroupHasItsOwnB) {
  expect_groups<Cooperative>(eight_groups, 200, 136);
  expect_groups<InPairs>(eight_groups, 192, 128);
  expect_groups<Pingpong>(eight_groups, 136, 72);
  expect_groups<Pingpong>(half_tiles, 1800, 136);
}
TEST_F(GroupedObject, RunsOnSomeMultiprocessors) {
  for (const int multiprocessors : {1, 3, 1000}) {
    expect_groups<Cooperative>(eight_groups, 392, 136, {.multiprocessors = multiprocessors});
    expect_groups<InPairs>(eight_groups, 192, 128, {.multiprocessors = multiprocessors});
  }
}

// A test must be able to see rows that are taken for another group's.
TEST_F(GroupedObject, AWrongOffsetIsSeen) {
  const RaggedRows<Cooperative> rows{eight_groups, 200, 136};
  for (const std::size_t group : {2, 5, 6}) {
    std::vector<int> told = eight_groups;
    ++told[group];
    EXPECT_FALSE(right(rows.run(told), 200, rows.expected())) << group;
  }
}

// Offsets may be others in the next run, and rows behind the last group's are nobody's.
TEST_F(GroupedObject, TheNumberOfRowsIsReadOnTheGpu) {
  const std::vector<int> all = {0, 300};
  const RaggedRows<Cooperative> rows{all, 136, 72};
  for (const int m : {0, 1, 64, 129, 300}) {
    std::vector<float> results = rows.run({0, m});
    for (std::size_t i = static_cast<std::size_t>(m) * 136; i < results.size(); ++i) ASSERT_EQ(results[i], untouched) << m;
    results.resize(static_cast<std::size_t>(m) * 136);
    EXPECT_TRUE(right(results, 136, rows.expected())) << m;
  }
}

template <class Make>
std::string refusal(const Make& make) {
  try {
    make();
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "";
}

TEST_F(GroupedObject, WrongArgumentsAreRefusedByName) {
  using Engine = GroupedGemm<Cooperative>;
  const OnGpu<bf16> matrix{std::vector<bf16>(64 * 64)};
  const OnGpu<int> offsets{{0, 64}};
  const OnGpu<std::byte> workspace{std::vector<std::byte>(Engine::workspace_bytes(64, 1))};
  const auto made = [&](std::size_t groups, const int* starts, void* list, const GroupedOptions& options) {
    return refusal([&] {
      Engine({.a = matrix.get(), .b = matrix.get(), .c = matrix.get(), .m = 64, .n = 64, .k = 64, .groups = groups}, starts, list,
             options);
    });
  };
  EXPECT_EQ(made(1, offsets.get(), workspace.get(), {}), "");
  EXPECT_THAT(made(0, offsets.get(), workspace.get(), {}), testing::HasSubstr("no groups"));
  EXPECT_THAT(made(1, nullptr, workspace.get(), {}), testing::HasSubstr("offsets"));
  EXPECT_THAT(made(1, offsets.get(), nullptr, {}), testing::HasSubstr("workspace_bytes"));
  EXPECT_THAT(made(1, offsets.get(), workspace.get() + 4, {}), testing::HasSubstr("multiple of 16"));
  EXPECT_THAT(made(1, offsets.get(), workspace.get(), {.band = 0}), testing::HasSubstr("band"));
  EXPECT_THAT(made(1, offsets.get(), workspace.get(), {.pitches = {.a = 63}}), testing::HasSubstr("pitch of a"));
  EXPECT_THAT(made(1, offsets.get(), workspace.get(), {.pitches = {.b = 68}}), testing::HasSubstr("pitch of b"));
  EXPECT_THAT(made(1, offsets.get(), workspace.get(), {.pitches = {.c = 72}}), testing::HasSubstr("PitchedRowsStore"));
}

}  // namespace
}  // namespace aisp::gemm
