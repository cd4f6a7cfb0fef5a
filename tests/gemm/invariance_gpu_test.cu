// SPDX-License-Identifier: Apache-2.0
// Whether a row of C has the same bits whatever other rows there are: the table of chapters/shared/gemm/README.md. Operands are
// no small integers here, and results are not rounded to bf16, so that another order of the sums shows.
#include "gemm/on_multiprocessors.cuh"
#include "ragged_rows.hpp"

namespace aisp::gemm {
namespace {

using Invariance = HopperTest;
using AlongK = Operand<bf16>;
using Tile = Config<AlongK, AlongK, InTensorCores, Shape{.tile_n = 128, .stages = 4}>;
using Fp8Tile = Config<Operand<e4m3>, Operand<e4m3>, Promoted, Shape{.tile_n = 128, .stages = 4}>;
using Rows = RowsStore<float>;
constexpr std::size_t n = 1032, k = 1096, most_k = 1104;
const std::vector<std::size_t> row_counts = {1, 63, 130, 700};

template <class T>
std::vector<T> reals(std::size_t count, unsigned seed) {
  std::mt19937 random{seed};
  std::normal_distribution<float> draw{0, 1};
  std::vector<T> values(count);
  for (T& value : values) value = static_cast<T>(draw(random));
  return values;
}

// The first row of a product with m rows, by run(a, b, c, m).
template <class Element, class Run>
std::vector<float> first_row(std::size_t m, const Run& run) {
  const OnGpu<Element> a{reals<Element>((m + 1) * most_k, 1)}, b{reals<Element>(n * most_k, 2)};
  const OnGpu<float> c{std::vector<float>((m + 1) * n)};
  run(a.get(), b.get(), c.get(), m);
  check(cudaDeviceSynchronize());
  std::vector<float> results = c.host();
  results.resize(n);
  return results;
}
// Returns for how many numbers of rows the first row has the bits that it has alone.
template <class Element, class Run>
std::size_t equal(const Run& run) {
  const std::vector<float> alone = first_row<Element>(1, run);
  return static_cast<std::size_t>(
      std::ranges::count_if(row_counts, [&](std::size_t m) { return first_row<Element>(m, run) == alone; }));
}

template <class C, class Schedule>
auto by(const Schedule& schedule) {
  return [schedule](const auto* a, const auto* b, float* c, std::size_t m) {
    Gemm<C, Schedule, Identity, Rows>{{.a = a, .b = b, .c = c, .m = m, .n = n, .k = C::tile_k == 64 ? k : most_k}, schedule}.run(
        nullptr);
  };
}
template <class Ranges>
auto in_ranges() {
  return [](const bf16* a, const bf16* b, float* c, std::size_t m) {
    using Product = GemmInRanges<Tile, Identity, Rows, Ranges>;
    const OnGpu<float> workspace{std::vector<float>(Product::workspace_floats())};
    Product{{.a = a, .b = b, .c = c, .m = m, .n = n, .k = k}, workspace.get()}.run(nullptr);
    check(cudaDeviceSynchronize());
  };
}

TEST_F(Invariance, WholeTiles) {
  EXPECT_EQ(equal<bf16>(by<Tile>(Bands{})), row_counts.size());
  EXPECT_EQ(equal<bf16>(by<Tile>(OnMultiprocessors<Bands>{{}, 3})), row_counts.size());
  EXPECT_EQ(equal<e4m3>(by<Fp8Tile>(Bands{})), row_counts.size());
  EXPECT_EQ(first_row<bf16>(700, by<Tile>(Bands{})), first_row<bf16>(700, by<Tile>(OnMultiprocessors<Bands>{{}, 3})));
}
TEST_F(Invariance, Groups) {
  EXPECT_EQ(equal<bf16>([](const bf16* a, const bf16* b, float* c, std::size_t m) {
              using Product = GroupedGemm<Tile, Identity, Rows>;
              const OnGpu<int> offsets{{0, static_cast<int>(m)}};
              const OnGpu<std::byte> list{std::vector<std::byte>(Product::workspace_bytes(m, 1))};
              Product{{.a = a, .b = b, .c = c, .m = m, .n = n, .k = k}, offsets.get(), list.get()}.run(nullptr);
              check(cudaDeviceSynchronize());
            }),
            row_counts.size());
}
TEST_F(Invariance, SlicesOfAFixedNumber) {
  EXPECT_EQ(equal<bf16>([](const bf16* a, const bf16* b, float* c, std::size_t m) {
              const OnGpu<float> workspace{std::vector<float>(4 * (m + 1) * n)};
              const Gemm<Tile, KSlices, Identity, SlicesStore> product{
                  {.a = a, .b = b, .c = workspace.get(), .m = m + m % 2, .n = n, .k = k}, {.slices = 4}};
              product.run(nullptr);
              sum_slices(nullptr, workspace.get(), product.schedule(), Identity{}, Rows{c});
              check(cudaDeviceSynchronize());
            }),
            row_counts.size());
}
// The cuts of a tile depend on how many tiles there are. If these keep a row's bits some day, the table is out of date.
TEST_F(Invariance, RangesDoNotKeepARowsBits) {
  EXPECT_LT(equal<bf16>(in_ranges<KRanges>()), row_counts.size());
  EXPECT_LT(equal<bf16>(in_ranges<LastRoundInRanges<Bands>>()), row_counts.size());
}

}  // namespace
}  // namespace aisp::gemm
