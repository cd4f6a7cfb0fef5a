// SPDX-License-Identifier: Apache-2.0
// The six users that the engine was made for, each on shapes with tails in every direction.
#include "gemm_case.hpp"

namespace aisp::gemm {
namespace {

using RowMajorB = Operand<bf16, Major::mn>;
using AlongK = Operand<bf16>;
using Fp8 = Operand<e4m3>;

using Pingpong = Config<AlongK, RowMajorB, InTensorCores, Shape{.tile_n = 128, .stages = 6, .pingpong = true, .cluster = 2}>;
using Cooperative = Config<AlongK, RowMajorB, InTensorCores, Shape{.tile_n = 256, .stages = 4, .cluster = 2}>;
using Fp8Promoted = Config<Fp8, Fp8, Promoted, Shape{.tile_n = 192, .stages = 5, .cluster = 2}>;
using Fp8Fast = Config<Fp8, Fp8, InTensorCores, Shape{.tile_n = 128, .stages = 6, .pingpong = true, .cluster = 2}>;
using Square = Config<AlongK, AlongK, InTensorCores, Shape{.tile_m = 192, .tile_n = 192, .stages = 4, .consumers = 3}>;

constexpr Sizes3 with_tails[] = {{1, 64, 8}, {130, 192, 72}, {257, 320, 200}, {900, 448, 64}};

template <class C>
void expect_product() {
  for (const Sizes3& sizes : with_tails) {
    const Case<C> product{C::tile_k == 128 ? Sizes3{sizes.m, sizes.n, sizes.k * 2} : sizes};
    const auto expected = [&](std::size_t i, std::size_t j) { return product.product(i, j); };
    const auto results = product.template run<Bands, Identity, TmaStore<bf16, 1>>();
    EXPECT_TRUE(right(results, sizes.n, expected)) << sizes.m;
    expect_shifts_seen(results, sizes.n, expected);
    EXPECT_FALSE(
        right(results, sizes.n, [&](std::size_t i, std::size_t j) { return product.product(i, j, 0, 0, product.sizes.k - 1); }))
        << "the last of K lost, " << sizes.m;
  }
}

using GemmUsers = HopperTest;

TEST_F(GemmUsers, PersistentPingpong) { expect_product<Pingpong>(); }
TEST_F(GemmUsers, PersistentCooperative) { expect_product<Cooperative>(); }
TEST_F(GemmUsers, Fp8Promoted) { expect_product<Fp8Promoted>(); }
TEST_F(GemmUsers, Fp8InTensorCores) { expect_product<Fp8Fast>(); }
TEST_F(GemmUsers, SquareTiles) { expect_product<Square>(); }

// So small tiles that every block has several, and the last of them an odd or an even number.
template <int cluster, int consumers, bool pingpong>
void expect_many_tiles() {
  using Small = Config<AlongK, AlongK, InTensorCores,
                       Shape{.tile_m = pingpong ? 64 : 64 * consumers,
                             .tile_n = 16,
                             .stages = 3,
                             .consumers = consumers,
                             .pingpong = pingpong,
                             .cluster = cluster}>;
  for (const std::size_t rows : {2500, 2600}) {
    const Case<Small> product{{rows, 328, 136}};
    const auto expected = [&](std::size_t i, std::size_t j) { return product.product(i, j); };
    const auto results = product.template run<Bands, Identity, TmaStore<bf16, 1>>();
    EXPECT_TRUE(right(results, product.sizes.n, expected)) << rows << " rows";
    expect_shifts_seen(results, product.sizes.n, expected);
  }
}

TEST_F(GemmUsers, PingpongOfManyTiles) { expect_many_tiles<1, 2, true>(); }
TEST_F(GemmUsers, PingpongOfManyTilesInClusters) { expect_many_tiles<2, 2, true>(); }
TEST_F(GemmUsers, CooperativeOfManyTiles) { expect_many_tiles<1, 2, false>(); }

TEST_F(GemmUsers, SteeperBandsGiveTheSame) {
  const Case<Pingpong> product{{1100, 320, 136}};
  const auto narrow = product.run<Bands>({}, {.band = 1});
  const auto expected = [&](std::size_t i, std::size_t j) { return product.product(i, j); };
  EXPECT_TRUE(right(narrow, product.sizes.n, expected));
  expect_shifts_seen(narrow, product.sizes.n, expected);
  for (const int band : {2, 3, 16}) EXPECT_EQ(narrow, product.run<Bands>({}, {.band = band})) << band;
}

TEST_F(GemmUsers, BiasGelu) {
  const Case<Pingpong> product{{300, 192, 136}};
  std::vector<bf16> bias = integers<bf16>(product.sizes.n, 3);
  const OnGpu<bf16> on_gpu{bias};
  // Sums of a size where GELU bends.
  const Chain epilogue{Scaled{0.015625f}, BiasGelu{{on_gpu.get()}, {}}};
  const auto results = product.run<Bands, Chain<Scaled, BiasGelu>>(epilogue);
  const auto gelu = [&](std::size_t i, std::size_t j) {
    const double x = product.product(i, j) / 64 + static_cast<double>(static_cast<float>(bias[j]));
    return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
  };
  EXPECT_TRUE(right(results, product.sizes.n, gelu, 0.01));
  EXPECT_FALSE(right(
      results, product.sizes.n, [&](std::size_t i, std::size_t j) { return gelu(i, j ^ 1); }, 0.01));
}

// Rows of 128 elements of K have scales of their own; n and k end within a block.
template <class C>
void expect_block_scaled(const Sizes3& sizes) {
  const Case<C> product{sizes};
  const std::size_t k_blocks = (sizes.k + 127) / 128, n_blocks = (sizes.n + 127) / 128, stride = (sizes.m + 3) / 4 * 4;
  const std::vector<float> a_scales = powers_of_two(k_blocks * stride, 4), b_scales = powers_of_two(n_blocks * k_blocks, 5);
  const OnGpu<float> a{a_scales}, b{b_scales};
  // With A's scales of another row and with B's `later` blocks of K further on than they should be.
  const auto scaled = [&](std::size_t i, std::size_t j, std::size_t scale_row, std::size_t later) {
    double sum = 0;
    for (std::size_t block = 0; block < k_blocks; ++block)
      sum += product.product(i, j, 0, block * 128, std::min(sizes.k, block * 128 + 128)) * a_scales[block * stride + scale_row] *
             b_scales[j / 128 * k_blocks + (block + later) % k_blocks];
    return sum;
  };
  const auto results = product.template run<Bands, Identity, TmaStore<bf16, 1>>({}, {}, a.get(), b.get(), stride);
  const auto of = [&](std::size_t row_moved, std::size_t later) {
    return [&, row_moved, later](std::size_t i, std::size_t j) { return scaled(i, j, (i + row_moved) % sizes.m, later); };
  };
  EXPECT_TRUE(right(results, sizes.n, of(0, 0))) << sizes.m << " " << sizes.n << " " << sizes.k;
  EXPECT_FALSE(right(results, sizes.n, of(1, 0))) << "scales of the next row";
  if (k_blocks > 1) EXPECT_FALSE(right(results, sizes.n, of(0, 1))) << "scales of the next block";
}

template <int tile_n, bool pingpong, int cluster>
using Scaled8 = Config<Fp8, Fp8, BlockScaled, Shape{.tile_n = tile_n, .stages = 4, .pingpong = pingpong, .cluster = cluster}>;

TEST_F(GemmUsers, BlockScaledCooperative) {
  for (const Sizes3& sizes : {Sizes3{301, 416, 400}, Sizes3{128, 128, 128}}) {
    expect_block_scaled<Scaled8<256, false, 1>>(sizes);
    expect_block_scaled<Scaled8<256, false, 2>>(sizes);
  }
}
TEST_F(GemmUsers, BlockScaledPingpong) {
  for (const Sizes3& sizes : {Sizes3{301, 416, 400}, Sizes3{900, 64, 256}}) {
    expect_block_scaled<Scaled8<128, true, 2>>(sizes);
    expect_block_scaled<Scaled8<64, true, 1>>(sizes);
  }
}

}  // namespace
}  // namespace aisp::gemm
