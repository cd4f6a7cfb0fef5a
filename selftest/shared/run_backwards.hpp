// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace aisp::selftest {

constexpr std::uint64_t without_shift(std::uint64_t x, int bits) {
  std::uint64_t z = x;
  for (int known = bits; known < 64; known += bits) z = x ^ (z >> bits);
  return z;
}

// Returns the seed, or the word of a digest, from which random_bits() makes `bits` at `index`: one round can be run backwards.
constexpr std::uint64_t seed_of(std::uint64_t bits, std::uint64_t index) {
  std::uint64_t z = without_shift(bits, 31) * 0x319642B2D24D8EC3ull;
  z = without_shift(z, 27) * 0x96DE1B173F119089ull;
  return without_shift(z, 30) - (index + 1) * 0x9E3779B97F4A7C15ull;
}

}  // namespace aisp::selftest
