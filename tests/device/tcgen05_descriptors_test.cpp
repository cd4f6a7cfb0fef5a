// SPDX-License-Identifier: Apache-2.0
// The bits are those of the tables of the PTX ISA; no GPU is needed to read them back.
#include <gtest/gtest.h>
#include <aisp/device/tcgen05_descriptors.hpp>

namespace aisp::device {
namespace {

template <class T>
constexpr T bits(T word, int first, int last) {
  return word >> first & ((T{1} << (last - first + 1)) - 1);
}

TEST(TensorInstruction, HasEachFieldInItsPlace) {
  const std::uint32_t word = tensor_instruction(TensorKind::bf16, 256, 224, false, true);
  EXPECT_EQ(bits(word, 0, 3), 0u) << "dense, not saturated";
  EXPECT_EQ(bits(word, 4, 5), 1u) << "D is fp32";
  EXPECT_EQ(bits(word, 7, 9), 1u) << "A is bf16";
  EXPECT_EQ(bits(word, 10, 12), 1u) << "B is bf16";
  EXPECT_EQ(bits(word, 13, 14), 0u) << "nothing negated";
  EXPECT_EQ(bits(word, 15, 15), 0u) << "A lies along K";
  EXPECT_EQ(bits(word, 16, 16), 1u) << "B lies along N";
  EXPECT_EQ(bits(word, 17, 22), 28u) << "N / 8";
  EXPECT_EQ(bits(word, 24, 28), 16u) << "M / 16";
  EXPECT_EQ(bits(word, 29, 31), 0u);
}

TEST(TensorInstruction, KnowsTheTypesOfFp8) {
  const std::uint32_t word = tensor_instruction(TensorKind::e4m3, 128, 256);
  EXPECT_EQ(bits(word, 7, 12), 0u) << "e4m3 is 0 in kind::f8f6f4";
  EXPECT_EQ(word, 0x08400010u);
  EXPECT_EQ(tensor_instruction(TensorKind::bf16, 128, 256), 0x08400490u);
}

TEST(TensorOperand, HasEachFieldInItsPlace) {
  const std::uint64_t word = tensor_operand_at(0x12400, 1024, 8192);
  EXPECT_EQ(bits(word, 0, 13), 0x1240u) << "address / 16";
  EXPECT_EQ(bits(word, 16, 29), 512u) << "leading offset / 16";
  EXPECT_EQ(bits(word, 32, 45), 64u) << "stride offset / 16";
  EXPECT_EQ(bits(word, 46, 48), 1u) << "the version";
  EXPECT_EQ(bits(word, 49, 52), 0u) << "base offset and mode";
  EXPECT_EQ(bits(word, 53, 60), 0u);
  EXPECT_EQ(bits(word, 61, 63), 2u) << "the 128-byte swizzle";
}

TEST(TensorOperand, AddressesOfClustersKeepTheirOffsetOnly) {
  EXPECT_EQ(tensor_operand_at(0x01000400, 1024, 16), tensor_operand_at(0x400, 1024, 16));
  EXPECT_EQ(tensor_operand_at(0, 1024, 16), 0x4000404000010000u);
}

}  // namespace
}  // namespace aisp::device
