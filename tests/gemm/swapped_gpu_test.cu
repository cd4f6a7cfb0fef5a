// SPDX-License-Identifier: Apache-2.0
// Groups of few rows with the weights as A.
#include "gemm/swapped.hpp"
#include "ragged_rows.hpp"

namespace aisp::gemm {
namespace {

using Swapped = HopperTest;
using AlongK = Operand<bf16>;
template <int tile_n, int tile_m, int consumers, int cluster>
using Narrow = Config<AlongK, AlongK, InTensorCores,
                      Shape{.tile_m = tile_m, .tile_n = tile_n, .stages = 4, .consumers = consumers, .cluster = cluster}>;

// c[n][m] of rows whose groups are `offsets`, of which the GPU is told others.
template <class C>
testing::AssertionResult swapped(const std::vector<int>& offsets, const std::vector<int>& told, int multiprocessors) {
  constexpr std::size_t m = 200, k = 136;
  const auto rows = static_cast<std::size_t>(offsets.back());
  const RaggedRows<C> ragged{offsets, m, k};  // a row of it is one of ours, its B our weights
  const OnGpu<bf16> weights{integers<bf16>((offsets.size() - 1) * m * k, 2)}, tokens{integers<bf16>(rows * k, 1)};
  const OnGpu<bf16> c{std::vector<bf16>(rows * m + 64, bf16{untouched})};
  using Engine = SwappedGroupedGemm<C>;
  const OnGpu<int> begins{told};
  const OnGpu<std::byte> list{std::vector<std::byte>(Engine::workspace_bytes(rows, offsets.size() - 1))};
  const Engine engine{
      {.a = weights.get(), .b = tokens.get(), .c = c.get(), .m = m, .n = rows, .k = k, .groups = offsets.size() - 1},
      begins.get(),
      list.get(),
      multiprocessors};
  engine.run(nullptr);
  check(cudaDeviceSynchronize());
  std::vector<float> results = as_floats(c.host());
  for (std::size_t i = rows * m; i < results.size(); ++i)
    if (results[i] != untouched) return testing::AssertionFailure() << "written behind C";
  results.resize(rows * m);
  return right(results, m, ragged.expected());
}

// Few tokens for many experts, and more than a tile of them for one.
const std::vector<int> few_tokens = {0, 1, 1, 1, 4, 4, 21, 22, 22, 30};

TEST_F(Swapped, EveryGroupHasItsOwnWeights) {
  for (const std::vector<int>& offsets : {few_tokens, eight_groups})
    for (const int multiprocessors : {0, 3}) {
      EXPECT_TRUE((swapped<Narrow<8, 64, 1, 1>>(offsets, offsets, multiprocessors)));
      EXPECT_TRUE((swapped<Narrow<16, 128, 2, 1>>(offsets, offsets, multiprocessors)));
      EXPECT_TRUE((swapped<Narrow<64, 128, 2, 2>>(offsets, offsets, multiprocessors)));
    }
}
TEST_F(Swapped, AWrongOffsetIsSeen) {
  std::vector<int> told = few_tokens;
  ++told[5];
  EXPECT_FALSE((swapped<Narrow<8, 64, 1, 1>>(few_tokens, told, 0)));
}

}  // namespace
}  // namespace aisp::gemm
