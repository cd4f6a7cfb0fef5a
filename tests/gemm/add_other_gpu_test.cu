// SPDX-License-Identifier: Apache-2.0
// Epilogues that add a matrix: fetched by TMA, or by rows with any store, in place as well.
#include "gemm/add_other.cuh"
#include "ragged_rows.hpp"

namespace aisp::gemm {
namespace {

using Adding = HopperTest;
using AlongK = Operand<bf16>;
using Pingpong = Config<AlongK, AlongK, InTensorCores, Shape{.tile_n = 128, .stages = 4, .pingpong = true, .cluster = 2}>;
using Cooperative = Config<AlongK, AlongK, InTensorCores, Shape{.tile_n = 256, .stages = 3}>;

// Adds with `moved` elements moved: a fault that the test must see.
template <class C>
testing::AssertionResult adds_by_tma(const Sizes3& sizes, std::size_t moved) {
  const Case<C> product{sizes};
  const std::vector<bf16> other = integers<bf16>(sizes.m * sizes.n, 7, 100);
  const OnGpu<bf16> on_gpu{other};
  const OnGpu<bf16> a{integers<bf16>(sizes.m * sizes.k, 1)}, b{integers<bf16>(sizes.n * sizes.k, 2)}, c{other};
  const Gemm<C, Bands, AddOther, TmaExchange> engine{{.a = a.get(),
                                                      .b = b.get(),
                                                      .c = c.get(),
                                                      .m = sizes.m,
                                                      .n = sizes.n,
                                                      .k = sizes.k,
                                                      .other = sizes.m % 2 == 0 ? c.get() : on_gpu.get()}};
  engine.run(nullptr);
  check(cudaDeviceSynchronize());
  return right(as_floats(c.host()), sizes.n, [&](std::size_t i, std::size_t j) {
    return product.product(i, j) + static_cast<double>(static_cast<float>(other[(i * sizes.n + j + moved) % other.size()]));
  });
}

template <class C>
testing::AssertionResult adds_rows(const Sizes3& sizes, std::size_t pitch, std::size_t moved) {
  const Case<C> product{sizes};
  const std::vector<bf16> other = integers<bf16>(sizes.m * sizes.n, 7, 100);
  const OnGpu<bf16> on_gpu{embedded(other, sizes.n, pitch)};
  const auto results = product.template run<Bands, AddRows, RowsStore<>>(AddRows{on_gpu.get(), static_cast<int>(pitch)});
  return right(results, sizes.n, [&](std::size_t i, std::size_t j) {
    return product.product(i, j) + static_cast<double>(static_cast<float>(other[(i * sizes.n + j + moved) % other.size()]));
  });
}

constexpr Sizes3 with_tails[] = {{1, 136, 72}, {300, 200, 136}, {513, 392, 64}};

TEST_F(Adding, ByTmaAlsoInPlace) {
  for (const Sizes3& sizes : with_tails) {
    EXPECT_TRUE(adds_by_tma<Pingpong>(sizes, 0)) << sizes.m;
    EXPECT_TRUE(adds_by_tma<Cooperative>(sizes, 0)) << sizes.m;
    EXPECT_FALSE(adds_by_tma<Pingpong>(sizes, 1)) << "the next element is added, " << sizes.m;
  }
}
TEST_F(Adding, ByRowsFromAWiderMatrix) {
  for (const Sizes3& sizes : with_tails) {
    EXPECT_TRUE(adds_rows<Pingpong>(sizes, sizes.n + 24, 0)) << sizes.m;
    EXPECT_TRUE(adds_rows<Cooperative>(sizes, sizes.n, 0)) << sizes.m;
    EXPECT_FALSE(adds_rows<Cooperative>(sizes, sizes.n, 8)) << "eight columns further are added, " << sizes.m;
  }
}

}  // namespace
}  // namespace aisp::gemm
