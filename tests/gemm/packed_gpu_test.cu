// SPDX-License-Identifier: Apache-2.0
// A in codes that are expanded in the main loop, to registers and through shared memory.
#include <cstdint>

#include "gemm_case.hpp"

namespace aisp::gemm {
namespace {

using GemmPacked = HopperTest;

// Codes are whole numbers of a byte; registers have them in the order of wgmma's fragments, shared memory by rows. Each row of a
// block has a scale.
template <class Factor_, bool in_registers_>
struct Bytes {
  using Factor = Factor_;
  static constexpr bool in_registers = in_registers_;
  static constexpr int columns = 128 / sizeof(Factor), codes_bytes = 64 * columns, block_bytes = codes_bytes + 64 * sizeof(float);
  static constexpr int in_word = 4 / sizeof(Factor);

  static __device__ unsigned word_of(unsigned codes) {
    union {
      Factor factors[in_word];
      unsigned word;
    } both;
    for (int i = 0; i < in_word; ++i) both.factors[i] = Factor{static_cast<float>(static_cast<signed char>(codes >> 8 * i))};
    return both.word;
  }
  static __device__ unsigned codes_of_word(const std::uint8_t* codes) {
    unsigned word = 0;
    for (int i = 0; i < in_word; ++i) word |= unsigned{codes[i]} << 8 * i;
    return word;
  }
  struct Words {
    unsigned of_steps[4][4];  // the codes of a word each
  };
  __device__ Words load(const std::uint8_t* block) const {
    const std::uint8_t* const own = block + threadIdx.x % 128 * (16 * in_word);
    Words words;
#pragma unroll
    for (int i = 0; i < 16; ++i) words.of_steps[i / 4][i % 4] = codes_of_word(own + i * in_word);
    return words;
  }
  __device__ void expand(const Words& words, int step, unsigned (&a)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = word_of(words.of_steps[step][i]);
  }
  __device__ void expand(const std::uint8_t* block, std::uint8_t* rows) const {
    for (int i = threadIdx.x % 128; i < codes_bytes / in_word; i += 128) {
      const int row = i / 32, word = i % 32;
      reinterpret_cast<unsigned*>(rows)[row * 32 + (word / 4 ^ row % 8) * 4 + word % 4] =
          word_of(codes_of_word(block + i * in_word));
    }
  }
  __device__ float2 scales(const std::uint8_t* block) const {
    const float* const of_rows =
        reinterpret_cast<const float*>(block + codes_bytes) + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    return make_float2(of_rows[0], of_rows[8]);
  }

  // Returns the place in a block of a row and column's code.
  static std::size_t place(std::size_t row, std::size_t column) {
    if (!in_registers) return row * columns + column;
    const std::size_t word = column / in_word, step = word / 8, in_step = word % 8;
    const std::size_t thread = row / 16 * 32 + row % 8 * 4 + in_step % 4, reg = in_step / 4 * 2 + row % 16 / 8;
    return (thread * 16 + step * 4 + reg) * in_word + column % in_word;
  }
};

// Exchanges what a block has for its rows 0 and 1.
template <class Codes>
std::vector<std::uint8_t> with_codes_exchanged(std::vector<std::uint8_t> blocks) {
  for (std::size_t k = 0; k < Codes::columns; ++k) std::swap(blocks[Codes::place(0, k)], blocks[Codes::place(1, k)]);
  return blocks;
}
template <class Codes>
std::vector<std::uint8_t> with_scales_exchanged(std::vector<std::uint8_t> blocks) {
  float* const of_rows = reinterpret_cast<float*>(blocks.data() + Codes::codes_bytes);
  std::swap(of_rows[0], of_rows[1]);
  return blocks;
}

template <class C>
void expect_packed(const Sizes3& sizes) {
  using Codes = typename C::A::Codes;
  const std::size_t across = sizes.k / C::tile_k, down = (sizes.m + 63) / 64;
  const std::vector<float> a = integers<float>(sizes.m * sizes.k, 1), b = integers<float>(sizes.n * sizes.k, 2);
  const std::vector<float> scales = powers_of_two(sizes.m * across, 3);
  std::vector<std::uint8_t> packed(down * across * Codes::block_bytes);
  for (std::size_t row = 0; row < sizes.m; ++row)
    for (std::size_t k = 0; k < sizes.k; ++k) {
      std::uint8_t* const block = packed.data() + (row / 64 * across + k / C::tile_k) * Codes::block_bytes;
      block[Codes::place(row % 64, k % C::tile_k)] = static_cast<std::uint8_t>(static_cast<signed char>(a[row * sizes.k + k]));
      reinterpret_cast<float*>(block + Codes::codes_bytes)[row % 64] = scales[row * across + k / C::tile_k];
    }
  const OnGpu<typename C::B::Element> b_gpu{std::vector<typename C::B::Element>(b.begin(), b.end())};
  constexpr bool scaled = std::is_same_v<typename C::Mainloop, ScaledExpanded>;
  std::vector<double> expected(sizes.n * sizes.m);
  for (std::size_t j = 0; j < sizes.n; ++j)
    for (std::size_t i = 0; i < sizes.m; ++i)
      for (std::size_t k = 0; k < sizes.k; ++k)
        expected[j * sizes.m + i] +=
            double{a[i * sizes.k + k]} * double{b[j * sizes.k + k]} * (scaled ? double{scales[i * across + k / C::tile_k]} : 1);
  const auto of_blocks = [&](const std::vector<std::uint8_t>& blocks) {
    const OnGpu<std::uint8_t> a_gpu{blocks};
    const OnGpu<float> c{std::vector<float>(sizes.m * sizes.n, untouched)};
    const Gemm<C, Bands, Identity, ColumnsStore<float>> gemm{
        {.a = a_gpu.get(), .b = b_gpu.get(), .c = c.get(), .m = sizes.m, .n = sizes.n, .k = sizes.k}};
    gemm.run(nullptr);
    check(cudaDeviceSynchronize());
    return right<float>(c.host(), sizes.m, [&](std::size_t j, std::size_t i) { return expected[j * sizes.m + i]; });
  };
  EXPECT_TRUE(of_blocks(packed)) << sizes.m << " x " << sizes.n << " x " << sizes.k;
  EXPECT_FALSE(of_blocks(with_codes_exchanged<Codes>(packed))) << "codes of another row";
  if (scaled) EXPECT_FALSE(of_blocks(with_scales_exchanged<Codes>(packed))) << "the scale of another row";
}

template <class C>
void expect_packed() {
  for (const Sizes3& sizes : {Sizes3{2, 1, 128}, Sizes3{200, 13, 1152}, Sizes3{2000, 40, 640}}) {
    expect_packed<C>(sizes);
  }
}

TEST_F(GemmPacked, ToRegisters) {
  expect_packed<Config<Packed<Bytes<bf16, true>>, Operand<bf16>, ExpandedInTensorCores, Shape{.tile_n = 16}>>();
  expect_packed<Config<Packed<Bytes<bf16, true>>, Operand<bf16>, ExpandedInTensorCores,
                       Shape{.tile_m = 256, .tile_n = 32, .stages = 3, .cluster = 2}>>();
}
TEST_F(GemmPacked, ToRegistersWithScales) {
  expect_packed<Config<Packed<Bytes<e4m3, true>>, Operand<e4m3>, ScaledExpanded,
                       Shape{.tile_m = 192, .tile_n = 32, .consumers = 3, .cluster = 2}>>();
}
TEST_F(GemmPacked, ThroughSharedMemory) {
  expect_packed<Config<Packed<Bytes<bf16, false>>, Operand<bf16>, ExpandedInTensorCores, Shape{.tile_n = 16}>>();
  expect_packed<Config<Packed<Bytes<e4m3, false>>, Operand<e4m3>, ScaledExpanded,
                       Shape{.tile_m = 256, .tile_n = 32, .stages = 3, .cluster = 2}>>();
}

}  // namespace
}  // namespace aisp::gemm
