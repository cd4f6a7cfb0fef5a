// SPDX-License-Identifier: Apache-2.0
// Groups whose rows of A are gathered by index.
#include "gemm/gathered.hpp"
#include "ragged_rows.hpp"

namespace aisp::gemm {
namespace {

using Gathered = HopperTest;
using AlongK = Operand<bf16>;
using RowMajorB = Operand<bf16, Major::mn>;
using Cooperative = Config<AlongK, AlongK, GatheredInTensorCores, Shape{.tile_n = 128, .stages = 4}>;
using Pingpong =
    Config<AlongK, RowMajorB, GatheredInTensorCores, Shape{.tile_m = 64, .tile_n = 64, .stages = 3, .pingpong = true}>;

// Rows of C whose A is a row of a table of 100 in any order, several times the same; `wrong`: one of the indices is another.
template <class C>
testing::AssertionResult gathered(const std::vector<int>& offsets, std::size_t n, std::size_t k, bool wrong = false) {
  constexpr std::size_t table_rows = 100, pitch = 328;
  const auto m = static_cast<std::size_t>(offsets.back());
  const std::size_t groups = offsets.size() - 1;
  const std::vector<bf16> table = integers<bf16>(table_rows * k, 1), b_host = integers<bf16>(groups * n * k, 2);
  std::vector<int> rows(m);
  for (std::size_t i = 0; i < m; ++i) rows[i] = static_cast<int>(i * 37 % table_rows);
  std::vector<int> told = rows;
  if (wrong) told[m / 2] = (told[m / 2] + 1) % static_cast<int>(table_rows);
  const OnGpu<bf16> a{embedded(table, k, pitch)}, b{b_host}, c{std::vector<bf16>(m * n + 64, bf16{untouched})};
  const OnGpu<int> index{told}, begins{offsets};
  using Engine = GatheredGroupedGemm<C>;
  const OnGpu<std::byte> list{std::vector<std::byte>(Engine::workspace_bytes(m, groups))};
  const Engine engine{{.a = a.get(), .b = b.get(), .c = c.get(), .m = m, .n = n, .k = k, .groups = groups},
                      index.get(),
                      begins.get(),
                      list.get(),
                      {.pitches = {.a = pitch}}};
  engine.run(nullptr);
  check(cudaDeviceSynchronize());
  std::vector<float> results = as_floats(c.host());
  for (std::size_t i = m * n; i < results.size(); ++i)
    if (results[i] != untouched) return testing::AssertionFailure() << "written behind C";
  results.resize(m * n);
  return right(results, n, [&](std::size_t i, std::size_t j) {
    std::size_t group = 0;
    while (static_cast<int>(i) >= offsets[group + 1]) ++group;
    double sum = 0;
    for (std::size_t at = 0; at < k; ++at) {
      const std::size_t of_b = C::B::major == Major::k ? (group * n + j) * k + at : (group * k + at) * n + j;
      sum += static_cast<double>(static_cast<float>(table[static_cast<std::size_t>(rows[i]) * k + at])) *
             static_cast<double>(static_cast<float>(b_host[of_b]));
    }
    return sum;
  });
}

TEST_F(Gathered, RowsInAnyOrder) {
  for (const auto& offsets : {eight_groups, half_tiles}) {
    EXPECT_TRUE(gathered<Cooperative>(offsets, 200, 136));
    EXPECT_TRUE(gathered<Cooperative>(offsets, 1800, 328));
    EXPECT_TRUE(gathered<Pingpong>(offsets, 192, 128));
  }
}
TEST_F(Gathered, AWrongIndexIsSeen) { EXPECT_FALSE(gathered<Cooperative>(eight_groups, 200, 136, true)); }

}  // namespace
}  // namespace aisp::gemm
