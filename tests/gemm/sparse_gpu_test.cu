// SPDX-License-Identifier: Apache-2.0
// A with two zeros in every four neighbours: where wgmma takes its elements and their metadata from, and the engine's main loop.
#include "gemm/sparse.cuh"

#include <array>
#include <cstdint>

#include "gemm_case.hpp"

namespace aisp::gemm {
namespace {

using GemmSparse = HopperTest;

// The first and the second element that are kept, of each group by its number: all pairs in turn.
constexpr std::array<std::array<std::size_t, 2>, 6> pairs{{{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}}};
const std::array<std::size_t, 2>& pair_of(std::size_t row, std::size_t k) { return pairs[(row * 5 + k / 4 * 7 + row / 8) % 6]; }

// A[m][k] and its blocks: whole numbers, or what value(row, k) says.
struct SparseMatrix {
  std::vector<float> dense;
  std::vector<std::uint8_t> blocks;

  template <class Value>
  SparseMatrix(std::size_t m, std::size_t k, const Value& value)
      : dense(m * k), blocks((m + 63) / 64 * (k / 64) * Sparse24::block_bytes) {
    for (std::size_t row = 0; row < (m + 63) / 64 * 64; ++row)
      for (std::size_t group = 0; group < k / 4; ++group)
        for (std::size_t i = 0; i < 2; ++i) {
          const std::size_t index = pair_of(row, group * 4)[i], at = group * 4 + index;
          const float number = row < m ? value(row, at) : 0;
          if (row < m) dense[row * k + at] = number;
          std::uint8_t* const block = blocks.data() + (row / 64 * (k / 64) + at / 64) * Sparse24::block_bytes;
          const auto in_block = static_cast<unsigned>(row % 64), quarter = static_cast<unsigned>(at % 64 / 16);
          const std::size_t in_quarter = group % 4;
          reinterpret_cast<bf16*>(block + Sparse24::values_at(in_block, quarter))[in_quarter * 2 + i] = bf16{number};
          *reinterpret_cast<std::uint16_t*>(block + Sparse24::metadata_at(in_block, quarter)) |=
              static_cast<std::uint16_t>(index << (in_quarter * 4 + i * 2));
        }
  }
};

// Multiplies either half of K of one block with a B that is 1 where the column is the element's number in that half.
__global__ void halves_kernel(const std::uint8_t* block, float* out) {
  __shared__ alignas(1024) std::uint8_t a[Sparse24::block_bytes];
  __shared__ alignas(1024) std::uint8_t b[64 * 128];
  const unsigned t = threadIdx.x;
  for (unsigned i = t; i < Sparse24::block_bytes / 4; i += 128)
    reinterpret_cast<unsigned*>(a)[i] = reinterpret_cast<const unsigned*>(block)[i];
  for (unsigned i = t; i < 64 * 64; i += 128) {
    const unsigned n = i / 64, k = i % 64;
    reinterpret_cast<bf16*>(b + n * 128 + (k / 8 ^ n % 8) * 16)[k % 8] = bf16{k % 32 == n ? 1.0f : 0.0f};
  }
  device::fence_proxy_async_shared();
  __syncthreads();
  float d[2][32];
  const unsigned metadata = *reinterpret_cast<const unsigned*>(a + Sparse24::values_bytes + t * 4);
  device::wgmma_touch(d[0]);
  device::wgmma_touch(d[1]);
  device::wgmma_fence();
  const std::uint64_t left = device::operand_of_64_bytes(a), right = device::operand(b);
  device::wgmma_sparse<0>(d[0], left, right, metadata, false);
  device::wgmma_sparse<1>(d[1], device::advance(left, 32), device::advance(right, 64), metadata, false);
  device::wgmma_commit();
  device::wgmma_wait<0>();
  device::wgmma_touch(d[0]);
  device::wgmma_touch(d[1]);
  const unsigned row = t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;
  for (unsigned half = 0; half < 2; ++half)
    for (unsigned i = 0; i < 32; ++i) out[half * 64 * 64 + (row + i % 4 / 2 * 8) * 64 + i / 4 * 8 + column + i % 2] = d[half][i];
}

template <class Value>
void expect_block_as_it_is(const char* what, const Value& value) {
  const SparseMatrix a{64, 64, value};
  const OnGpu<std::uint8_t> block{a.blocks};
  const OnGpu<float> out{std::vector<float>(2 * 64 * 64, untouched)};
  halves_kernel<<<1, 128>>>(block.get(), out.get());
  check(cudaGetLastError());
  check(cudaDeviceSynchronize());
  const std::vector<float> results = out.host();
  for (std::size_t half = 0; half < 2; ++half) {
    int shown = 0;
    for (std::size_t row = 0; row < 64; ++row)
      for (std::size_t column = 0; column < 64; ++column) {
        const float result = results[(half * 64 + row) * 64 + column];
        const float right = column < 32 ? a.dense[row * 64 + half * 32 + column] : 0;
        if (result != right && ++shown <= 20)
          ADD_FAILURE() << what << " of half " << half << ", row " << row << ", element " << column << ": " << result << ", not "
                        << right;
      }
  }
}

// A result that is wrong names the row, or the element along K, that was there instead.
TEST_F(GemmSparse, ElementsAreWhereTheMetadataSays) {
  expect_block_as_it_is("row", [](std::size_t row, std::size_t) { return static_cast<float>(row + 1); });
  expect_block_as_it_is("element", [](std::size_t, std::size_t k) { return static_cast<float>(k + 1); });
}

// `exchanged`: the first block has the metadata of its rows 1 and 2 for one another, a planted fault.
template <class C>
testing::AssertionResult multiplied(const Sizes3& sizes, bool exchanged = false) {
  const std::vector<float> numbers = integers<float>(sizes.m * sizes.k, 1);
  SparseMatrix a{sizes.m, sizes.k, [&](std::size_t row, std::size_t k) { return numbers[row * sizes.k + k]; }};
  for (unsigned quarter = 0; exchanged && quarter < 4; ++quarter)
    for (unsigned i = 0; i < 2; ++i)
      std::swap(a.blocks[Sparse24::metadata_at(1, quarter) + i], a.blocks[Sparse24::metadata_at(2, quarter) + i]);
  const std::vector<bf16> b = integers<bf16>(sizes.n * sizes.k, 2);
  const OnGpu<std::uint8_t> blocks{a.blocks};
  const OnGpu<bf16> b_gpu{b};
  const OnGpu<bf16> c{std::vector<bf16>(sizes.m * sizes.n, bf16{untouched})};
  const Gemm<C> gemm{{.a = blocks.get(), .b = b_gpu.get(), .c = c.get(), .m = sizes.m, .n = sizes.n, .k = sizes.k}};
  gemm.run(nullptr);
  check(cudaDeviceSynchronize());
  return right(as_floats(c.host()), sizes.n, [&](std::size_t i, std::size_t j) {
    double sum = 0;
    for (std::size_t k = 0; k < sizes.k; ++k) {
      const std::size_t at = C::B::major == Major::k ? j * sizes.k + k : k * sizes.n + j;
      sum += double{a.dense[i * sizes.k + k]} * double{static_cast<float>(b[at])};
    }
    return sum;
  });
}

template <class C>
void expect_products() {
  for (const Sizes3& sizes : {Sizes3{8, 64, 64}, Sizes3{200, 320, 1152}, Sizes3{2000, 576, 640}})
    EXPECT_TRUE(multiplied<C>(sizes)) << sizes.m << " x " << sizes.n << " x " << sizes.k;
  EXPECT_FALSE(multiplied<C>({200, 320, 128}, true));
}

TEST_F(GemmSparse, Products) {
  expect_products<Config<Sparse24, Operand<bf16>, SparseInTensorCores, Shape{}>>();
  expect_products<Config<Sparse24, Operand<bf16>, SparseInTensorCores, Shape{.tile_n = 256, .cluster = 2}>>();
  expect_products<Config<Sparse24, Operand<bf16>, SparseInTensorCores, Shape{.tile_m = 256, .tile_n = 192, .cluster = 2}>>();
  expect_products<Config<Sparse24, Operand<bf16>, SparseInTensorCores, Shape{.tile_m = 64, .pingpong = true}>>();
}
TEST_F(GemmSparse, BAlongN) {
  expect_products<Config<Sparse24, Operand<bf16, Major::mn>, SparseInTensorCores, Shape{.tile_m = 192, .consumers = 3}>>();
}

}  // namespace
}  // namespace aisp::gemm
