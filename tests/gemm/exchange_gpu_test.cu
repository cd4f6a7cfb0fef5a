// SPDX-License-Identifier: Apache-2.0
// Epilogues that read a second matrix, with and without sums of columns, in each form of tile.
#include "gemm_case.hpp"

namespace aisp::gemm {
namespace {

using AlongK = Operand<bf16>;
template <int tile_m, int tile_n, bool pingpong, int cluster, int consumers = 2>
using Tiles = Config<
    AlongK, AlongK, InTensorCores,
    Shape{.tile_m = tile_m, .tile_n = tile_n, .stages = 3, .consumers = consumers, .pingpong = pingpong, .cluster = cluster}>;

struct TimesOther {
  static constexpr int narrowing = 1;
  template <int columns>
  using Kept = Nothing;
  template <int count, class Other>
  __device__ void operator()(float (&sums)[count], const Fragment&, const Other& other, Nothing&) const {
#pragma unroll
    for (int i = 0; i < count; i += 8) {
      float values[8];
      other.load(i, values);
#pragma unroll
      for (int j = 0; j < 8; ++j) sums[i + j] *= values[j];
    }
  }
  template <int columns>
  __device__ void end_tile(const Nothing&, const Fragment&, const Meeting&) const {}
};

template <int rows>
struct TimesOtherAndColumnSums {
  static constexpr int narrowing = 1;
  template <int columns>
  using Kept = ColumnSums<columns>;
  float* partial = nullptr;
  template <int count, class Other>
  __device__ void operator()(float (&sums)[count], const Fragment& at, const Other& other, ColumnSums<count * 2>& kept) const {
    Nothing nothing;
    TimesOther{}(sums, at, other, nothing);
    kept.add(sums);
  }
  template <int columns>
  __device__ void end_tile(const ColumnSums<columns>& kept, const Fragment& at, const Meeting& meeting) const {
    kept.store(at.first_row < at.row_end ? partial + at.first_row / rows * at.column_end : nullptr, at, meeting);
  }
};

// Two tiles or more for each block, so that boxes are filled again; and tails.
constexpr Sizes3 all_sizes[] = {{1, 64, 8}, {150, 208, 72}, {257, 328, 200}, {6000, 1032, 8}};

template <class C>
void expect_times_other() {
  for (const Sizes3& sizes : all_sizes) {
    SCOPED_TRACE(sizes.m);
    const Case<C> product{sizes};
    const std::vector<bf16> other = integers<bf16>(sizes.m * sizes.n, 7, 2);
    const OnGpu<bf16> on_gpu{other};
    const auto expected = [&](std::size_t i, std::size_t j) {
      return product.product(i, j) * static_cast<double>(static_cast<float>(other[i * sizes.n + j]));
    };
    const auto plain = product.template run<Bands, TimesOther, TmaExchange>({}, {}, nullptr, nullptr, 0, on_gpu.get());
    EXPECT_TRUE(right(plain, sizes.n, expected));
    // With the other matrix one element further on, and one row.
    const auto times = [&](std::size_t further) {
      return [&, further](std::size_t i, std::size_t j) {
        const std::size_t at = (i * sizes.n + j + further) % other.size();
        return product.product(i, j) * static_cast<double>(static_cast<float>(other[at]));
      };
    };
    EXPECT_FALSE(right(plain, sizes.n, times(1)));
    if (sizes.m > 1) EXPECT_FALSE(right(plain, sizes.n, times(sizes.n)));

    constexpr std::size_t rows = C::rows;
    const std::size_t parts = (sizes.m + rows - 1) / rows;
    const OnGpu<float> partial{std::vector<float>(parts * sizes.n + 64, untouched)};
    EXPECT_EQ(plain, (product.template run<Bands, TimesOtherAndColumnSums<C::rows>, TmaExchange>({partial.get()}, {}, nullptr,
                                                                                                 nullptr, 0, on_gpu.get())));
    std::vector<float> sums = partial.host();
    for (std::size_t i = parts * sizes.n; i < sums.size(); ++i) EXPECT_EQ(sums[i], untouched) << "behind the sums";
    sums.resize(parts * sizes.n);
    const auto sum_of_rows = [&](std::size_t lost) {
      return [&, lost](std::size_t part, std::size_t j) {
        double sum = 0;
        for (std::size_t i = part * rows; i + lost < std::min(sizes.m, (part + 1) * rows); ++i) sum += expected(i, j);
        return sum;
      };
    };
    EXPECT_TRUE(right<float>(sums, sizes.n, sum_of_rows(0)));
    EXPECT_FALSE(right<float>(sums, sizes.n, sum_of_rows(1))) << "the last row lost";
  }
}

using Exchange = HopperTest;

TEST_F(Exchange, Pingpong) {
  expect_times_other<Tiles<128, 128, true, 2>>();
  expect_times_other<Tiles<64, 256, true, 1>>();
}
TEST_F(Exchange, Cooperative) {
  expect_times_other<Tiles<128, 192, false, 2>>();
  expect_times_other<Tiles<256, 128, false, 1>>();
}
TEST_F(Exchange, OneConsumer) { expect_times_other<Tiles<64, 64, false, 1, 1>>(); }

TEST_F(Exchange, NeedsTheOtherMatrix) {
  using C = Tiles<128, 128, true, 1>;
  const Case<C> product{{64, 64, 64}};
  EXPECT_THROW((product.run<Bands, TimesOther, TmaExchange>()), std::logic_error);
}

}  // namespace
}  // namespace aisp::gemm
