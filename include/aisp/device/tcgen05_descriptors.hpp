// SPDX-License-Identifier: Apache-2.0
// The descriptors of tcgen05.mma: PTX ISA, "Instruction descriptor" and "Shared memory descriptor" of the fifth generation.
#pragma once
#include <cstdint>

namespace aisp::device {

// The operands' type; sums are fp32. A product takes 32 bytes of K: 16 bf16, 32 e4m3.
enum class TensorKind { bf16, e4m3 };

// The 32-bit instruction descriptor of kind::f16 and kind::f8f6f4. Bits 4-5: type of D (1: fp32); 7-9 and 10-12: types of A and B
// (kind::f16: 1 is bf16; kind::f8f6f4: 0 is e4m3); 15 and 16: A and B lie along M and N; 17-22: N / 8; 24-28: M / 16. The rest is
// 0: dense, nothing negated or saturated. One block: M is 128, N a multiple of 16 up to 256. A pair: M is 256 and N a multiple of
// 32; each block has half of the rows of A and D, and half of the columns of B.
constexpr std::uint32_t tensor_instruction(TensorKind kind, int m, int n, bool a_along_m = false, bool b_along_n = false) {
  const std::uint32_t type = kind == TensorKind::bf16 ? 1 : 0;
  return 1u << 4 | type << 7 | type << 10 | static_cast<std::uint32_t>(a_along_m) << 15 |
         static_cast<std::uint32_t>(b_along_n) << 16 | static_cast<std::uint32_t>(n / 8) << 17 |
         static_cast<std::uint32_t>(m / 16) << 24;
}

// The 64-bit descriptor of an operand in shared memory with the 128-byte swizzle, laid out as operand() in wgmma.cuh says. Bits
// 0-13: address / 16; 16-29: leading offset / 16 (Major::mn: from 64 of M or N to the next 64; Major::k: not used); 32-45: stride
// offset / 16 (from eight rows of the swizzle to the next eight: of M or N with Major::k, of K with Major::mn); 46-48: 1, the
// version; 49-51: base offset, 0 for tiles aligned to 1024; 61-63: 2, the 128-byte swizzle. advance() moves it along K.
constexpr std::uint64_t tensor_operand_at(std::uint32_t address, unsigned group_bytes, unsigned chunk_bytes) {
  constexpr std::uint64_t version = std::uint64_t{1} << 46, swizzle_128 = std::uint64_t{2} << 61;
  const auto field = [](std::uint32_t bytes) { return static_cast<std::uint64_t>((bytes & 0x3FFFF) >> 4); };
  return swizzle_128 | version | field(group_bytes) << 32 | field(chunk_bytes) << 16 | field(address);
}

}  // namespace aisp::device
