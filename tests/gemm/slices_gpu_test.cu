// SPDX-License-Identifier: Apache-2.0
// K in slices whose sums are added in a fixed order.
#include "gemm_case.hpp"

namespace aisp::gemm {
namespace {

using GemmSlices = HopperTest;
using Fp8 = Operand<e4m3>;
using Wide = Config<Operand<bf16>, Operand<bf16>, InTensorCores, Shape{.tile_n = 64, .pingpong = true}>;
using Narrow = Config<Fp8, Fp8, Promoted, Shape{.tile_n = 8, .stages = 6}>;

template <class C, class Store>
testing::AssertionResult summed(const Sizes3& sizes, int slices, int expected_slices) {
  constexpr bool transposed = Store::any_width;
  const std::vector<typename C::A::Element> a_host = integers<typename C::A::Element>(sizes.m * sizes.k, 1);
  const std::vector<typename C::B::Element> b_host = integers<typename C::B::Element>(sizes.n * sizes.k, 2);
  const OnGpu<typename C::A::Element> a{a_host};
  const OnGpu<typename C::B::Element> b{b_host};
  const std::size_t count = sizes.m * sizes.n;
  const OnGpu<float> workspace{std::vector<float>(count * static_cast<std::size_t>(slices), untouched)};
  const OnGpu<bf16> c{std::vector<bf16>(count, bf16{untouched})};
  const Gemm<C, KSlices, Identity, SlicesStore> parts{
      {.a = a.get(), .b = b.get(), .c = workspace.get(), .m = sizes.m, .n = sizes.n, .k = sizes.k}, {.slices = slices}};
  EXPECT_EQ(parts.schedule().slices, expected_slices);
  parts.run(nullptr);
  sum_slices(nullptr, workspace.get(), parts.schedule(), Scaled{0.5f}, Store{c.get()});
  check(cudaDeviceSynchronize());
  const Case<C> product{sizes};
  return right(as_floats(c.host()), transposed ? sizes.m : sizes.n, [&](std::size_t row, std::size_t column) {
    return 0.5 * (transposed ? product.product(column, row) : product.product(row, column));
  });
}

TEST_F(GemmSlices, AddUp) {
  EXPECT_TRUE((summed<Wide, RowsStore<bf16>>({130, 72, 400}, 3, 3)));
  EXPECT_TRUE((summed<Wide, RowsStore<bf16>>({130, 72, 64}, 8, 1))) << "no slice is empty";
  EXPECT_TRUE((summed<Wide, RowsStore<bf16>>({130, 72, 328}, 4, 3)));
}

TEST_F(GemmSlices, OfFewColumnsAndTransposed) {
  for (const std::size_t tokens : {1, 9}) EXPECT_TRUE((summed<Narrow, ColumnsStore<bf16>>({200, tokens, 1040}, 4, 3))) << tokens;
}

}  // namespace
}  // namespace aisp::gemm
