// SPDX-License-Identifier: Apache-2.0
// Groups that share their matrices: each matrix has several.
#include "gemm/repeated.hpp"
#include "ragged_rows.hpp"

namespace aisp::gemm {
namespace {

using Repeated = HopperTest;
using AlongK = Operand<bf16>;
constexpr Shape shape{.tile_n = 128, .stages = 4};
using InOrder = Config<AlongK, AlongK, InTensorCores, shape>;
using ByIndex = Config<AlongK, AlongK, GatheredInTensorCores, shape>;

constexpr std::size_t n = 200, k = 136;

// C of groups that are multiplied by `matrices` matrices in turn, of which those of `expected` are right.
template <class C>
testing::AssertionResult repeated(const std::vector<int>& offsets, std::size_t matrices, std::size_t expected) {
  constexpr bool gathers = std::is_same_v<typename C::Mainloop, GatheredInTensorCores>;
  const auto m = static_cast<std::size_t>(offsets.back());
  const std::size_t groups = offsets.size() - 1;
  const std::vector<bf16> a_host = integers<bf16>(m * k, 1), b_host = integers<bf16>(groups * n * k, 2);
  std::vector<int> rows(m);
  for (std::size_t i = 0; i < m; ++i) rows[i] = static_cast<int>(gathers ? (i * 37 + 5) % m : i);
  const OnGpu<bf16> a{a_host}, b{b_host}, c{std::vector<bf16>(m * n, bf16{untouched})};
  const OnGpu<int> begins{offsets}, index{rows};
  using Engine = RepeatedGroupedGemm<C>;
  const OnGpu<std::byte> list{std::vector<std::byte>(Engine::workspace_bytes(m, groups))};
  const Engine engine{{.a = a.get(), .b = b.get(), .c = c.get(), .m = m, .n = n, .k = k, .groups = matrices},
                      groups / matrices,
                      begins.get(),
                      list.get(),
                      gathers ? index.get() : nullptr};
  engine.run(nullptr);
  check(cudaDeviceSynchronize());
  return right(as_floats(c.host()), n, [&](std::size_t i, std::size_t j) {
    std::size_t group = 0;
    while (static_cast<int>(i) >= offsets[group + 1]) ++group;
    double sum = 0;
    for (std::size_t at = 0; at < k; ++at)
      sum += static_cast<double>(static_cast<float>(a_host[static_cast<std::size_t>(rows[i]) * k + at])) *
             static_cast<double>(static_cast<float>(b_host[(group % expected * n + j) * k + at]));
    return sum;
  });
}

TEST_F(Repeated, GroupsTakeTheMatricesInTurn) {
  for (const std::size_t matrices : {1, 2, 4, 8}) {
    EXPECT_TRUE(repeated<InOrder>(eight_groups, matrices, matrices)) << matrices;
    EXPECT_TRUE(repeated<ByIndex>(eight_groups, matrices, matrices)) << matrices;
  }
}
TEST_F(Repeated, AnotherMatrixIsSeen) {
  EXPECT_FALSE(repeated<InOrder>(eight_groups, 4, 2));
  EXPECT_FALSE(repeated<ByIndex>(eight_groups, 4, 8));
}

}  // namespace
}  // namespace aisp::gemm
