// SPDX-License-Identifier: Apache-2.0
// Products of s8: sums that fp32 cannot hold come out rounded once; and a second part in bf16, of which any number of columns is
// used.
#include "gemm_case.hpp"

namespace aisp::gemm {
namespace {

using Int8 = Operand<std::int8_t>;
template <class Mainloop, int tile_n, bool pingpong, int cluster>
using Integers = Config<Int8, Int8, Mainloop, Shape{.tile_n = tile_n, .stages = 4, .pingpong = pingpong, .cluster = cluster}>;

using GemmIntegers = HopperTest;

template <class C>
void expect_product(const Sizes3& sizes) {
  const Case<C> product{sizes};
  const std::vector<float> rows = powers_of_two(sizes.m, 4), columns = powers_of_two(sizes.n, 5);
  const OnGpu<float> a{rows}, b{columns};
  const auto expected = [&](std::size_t i, std::size_t j) {
    return product.product(i, j) * static_cast<double>(rows[i]) * static_cast<double>(columns[j]);
  };
  EXPECT_TRUE(right(product.template run<Bands, Identity, TmaStore<bf16, 1>>({}, {}, a.get(), b.get()), sizes.n, expected))
      << sizes.m;
  EXPECT_TRUE(right<float>(product.template run<Bands, Identity, RowsStore<float>>({}, {}, a.get(), b.get()), sizes.n, expected))
      << sizes.m;
}

TEST_F(GemmIntegers, Sums) {
  for (const Sizes3& sizes : {Sizes3{1, 64, 16}, Sizes3{257, 320, 400}, Sizes3{900, 448, 128}}) {
    expect_product<Integers<ScaledIntegers, 256, false, 1>>(sizes);
    expect_product<Integers<ScaledIntegers, 256, false, 2>>(sizes);
    expect_product<Integers<ScaledIntegers, 128, true, 2>>(sizes);
  }
}

TEST_F(GemmIntegers, ShiftsAndScalesOfOthersAreSeen) {
  using C = Integers<ScaledIntegers, 128, true, 2>;
  const Sizes3 sizes{257, 320, 144};
  const Case<C> product{sizes};
  const std::vector<float> rows = powers_of_two(sizes.m, 4), columns = powers_of_two(sizes.n, 5);
  const OnGpu<float> a{rows}, b{columns};
  const auto results = product.run<Bands, Identity, RowsStore<float>>({}, {}, a.get(), b.get());
  const auto scaled = [&](std::size_t i, std::size_t j, std::size_t row, std::size_t column) {
    return product.product(i, j) * static_cast<double>(rows[row]) * static_cast<double>(columns[column]);
  };
  expect_shifts_seen<float>(results, sizes.n, [&](std::size_t i, std::size_t j) { return scaled(i, j, i, j); });
  EXPECT_FALSE(right<float>(results, sizes.n, [&](std::size_t i, std::size_t j) { return scaled(i, j, (i + 1) % sizes.m, j); }));
  EXPECT_FALSE(right<float>(results, sizes.n, [&](std::size_t i, std::size_t j) { return scaled(i, j, i, j ^ 1); }));
}

TEST_F(GemmIntegers, LargestSums) {
  using C = Integers<ScaledIntegers, 128, true, 1>;
  const Sizes3 sizes{130, 128, 8192};
  const OnGpu<std::int8_t> a{std::vector<std::int8_t>(sizes.m * sizes.k, -127)},
      b{std::vector<std::int8_t>(sizes.n * sizes.k, 127)};
  const OnGpu<float> ones{std::vector<float>(sizes.m, 1)}, c{std::vector<float>(sizes.m * sizes.n)};
  using Engine = Gemm<C, Bands, Identity, RowsStore<float>>;
  const Engine gemm{Engine::Problem{.a = a.get(),
                                    .b = b.get(),
                                    .c = c.get(),
                                    .m = sizes.m,
                                    .n = sizes.n,
                                    .k = sizes.k,
                                    .a_scales = ones.get(),
                                    .b_scales = ones.get()}};
  gemm.run(nullptr);
  check(cudaDeviceSynchronize());
  for (const float sum : c.host()) ASSERT_EQ(sum, -static_cast<float>(8192 * 127 * 127));
}

// Scales are powers of two and so are the elements of the second part, so that only the store rounds.
template <class C>
void expect_two_parts(const Sizes3& sizes, std::size_t k2, int used) {
  const Case<C> first{sizes};
  const std::vector<float> rows = powers_of_two(sizes.m, 4), columns = powers_of_two(sizes.n, 5);
  std::vector<bf16> a2 = integers<bf16>(sizes.m * k2, 6), b2 = integers<bf16>(k2 * sizes.n, 7);
  for (std::size_t i = 0; i < a2.size(); ++i)
    if (i % k2 >= static_cast<std::size_t>(used) && i % k2 < static_cast<std::size_t>((used + 63) / 64 * 64)) a2[i] = 0.0f;
  // The last column that is used can be missed in every row.
  for (std::size_t i = 0; used > 0 && i < sizes.m; ++i) a2[i * k2 + static_cast<std::size_t>(used) - 1] = 1.0f;
  const OnGpu<float> a_scales{rows}, b_scales{columns};
  const OnGpu<bf16> a2_on_gpu{a2}, b2_on_gpu{b2};
  const OnGpu<int> used_on_gpu{{used}};
  const auto results = first.template run_two_parts<RowsStore<float>>(
      {a_scales.get(), b_scales.get(), a2_on_gpu.get(), b2_on_gpu.get(), k2, used_on_gpu.get()});
  const auto expected = [&](std::size_t i, std::size_t j, std::size_t columns_of_a2) {
    double sum = first.product(i, j) * static_cast<double>(rows[i]) * static_cast<double>(columns[j]);
    for (std::size_t k = 0; k < columns_of_a2; ++k)
      sum +=
          static_cast<double>(static_cast<float>(a2[i * k2 + k])) * static_cast<double>(static_cast<float>(b2[k * sizes.n + j]));
    return sum;
  };
  const auto of = [&](std::size_t count) { return [&, count](std::size_t i, std::size_t j) { return expected(i, j, count); }; };
  EXPECT_TRUE(right<float>(results, sizes.n, of(static_cast<std::size_t>(used)))) << sizes.m << " " << used;
  if (used > 0) EXPECT_FALSE(right<float>(results, sizes.n, of(static_cast<std::size_t>(used) - 1)));
}

TEST_F(GemmIntegers, SecondPart) {
  for (const int used : {0, 1, 63, 64, 65, 128})
    for (const Sizes3& sizes : {Sizes3{1, 64, 16}, Sizes3{257, 320, 400}}) {
      expect_two_parts<Integers<IntegersThenBf16, 256, false, 1>>(sizes, 128, used);
      expect_two_parts<Integers<IntegersThenBf16, 256, false, 2>>(sizes, 128, used);
      expect_two_parts<Integers<IntegersThenBf16, 128, true, 1>>(sizes, 128, used);
      expect_two_parts<Integers<IntegersThenBf16, 128, true, 2>>(sizes, 128, used);
    }
}

}  // namespace
}  // namespace aisp::gemm
