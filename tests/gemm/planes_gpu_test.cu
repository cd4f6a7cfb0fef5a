// SPDX-License-Identifier: Apache-2.0
// Sums that leave the tensor cores every few stages, and several planes of B in one set of sums.
#include "gemm/planes.cuh"
#include "gemm_case.hpp"

namespace aisp::gemm {
namespace {

using Planes = HopperTest;
using AlongK = Operand<bf16>;
template <int stages_between, int planes, bool pingpong>
using Promoting =
    Config<AlongK, AlongK, PromotedEvery<stages_between, planes>,
           Shape{.tile_m = pingpong ? 64 : 128, .tile_n = planes * 64, .stages = 4, .pingpong = pingpong, .cluster = 2}>;

// C's columns are in tiles of 64, of which B has all planes; `lost`: a plane that the reference leaves out.
template <class C, int planes>
testing::AssertionResult planes_add_up(std::size_t m, std::size_t k, int lost = -1) {
  constexpr std::size_t columns = 192;
  const Case<C> product{{m, planes * columns, k}};
  const auto results = product.template run<Bands, OfPlanes<planes>, RowsStore<float>>();
  return right<float>(results, columns, [&](std::size_t i, std::size_t j) {
    double sum = 0;
    for (int plane = 0; plane < planes; ++plane)
      if (plane != lost) sum += product.product(i, j / 64 * 64 * planes + static_cast<std::size_t>(plane) * 64 + j % 64);
    return sum;
  });
}

template <int stages_between, int planes, bool pingpong>
void expect_planes() {
  using C = Promoting<stages_between, planes, pingpong>;
  for (const std::size_t k : {64, 136, 512, 584, 1160})  // one stage, tails, and some of which the last period has one or all
    EXPECT_TRUE((planes_add_up<C, planes>(300, k))) << k;
  if (planes > 1) EXPECT_FALSE((planes_add_up<C, planes>(300, 136, planes - 1))) << "the last plane is lost";
}

TEST_F(Planes, OnePromotedEveryFewStages) {
  expect_planes<1, 1, false>();
  expect_planes<3, 1, true>();
}
TEST_F(Planes, TwoInOneSetOfSums) {
  expect_planes<8, 2, false>();
  expect_planes<2, 2, true>();
}
TEST_F(Planes, ThreeInOneSetOfSums) { expect_planes<8, 3, false>(); }

}  // namespace
}  // namespace aisp::gemm
