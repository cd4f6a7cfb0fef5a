// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>

#include "pair/memory/elements.cuh"
#include "pair/memory/memory.hpp"

namespace aisp::pair {
namespace {

// Decodes `exponent_bits` and `mantissa_bits` after a sign, without infinities: the small formats of the OCP Microscaling
// specification.
double small_float(unsigned code, int exponent_bits, int mantissa_bits) {
  const unsigned fraction = code & ((1u << mantissa_bits) - 1), biased = code >> mantissa_bits & ((1u << exponent_bits) - 1);
  const int exponent = static_cast<int>(biased != 0 ? biased : 1) - ((1 << (exponent_bits - 1)) - 1);
  const double significand = (biased != 0 ? 1 : 0) + std::ldexp(fraction, -mantissa_bits);
  const bool negative = (code >> (exponent_bits + mantissa_bits) & 1) != 0;
  return (negative ? -1 : 1) * std::ldexp(significand, exponent);
}

std::string meaning(unsigned byte, ElementType type) {
  switch (type) {
    case ElementType::e2m1x2: return fmt::format("{:g}, {:g}", small_float(byte & 15, 2, 1), small_float(byte >> 4, 2, 1));
    case ElementType::s4x2:
      return fmt::format("{:g}, {:g}", number_of_code(byte & 15, 4, true), number_of_code(byte >> 4, 4, true));
    case ElementType::e3m2: return fmt::format("{:g}", small_float(byte & 63, 3, 2));
    default: return byte == 255 ? std::string{"NaN"} : fmt::format("2^{}", static_cast<int>(byte) - 127);
  }
}

}  // namespace

std::string element_text(double value, ElementType type) {
  const bool is_byte = value >= 0 && value <= 255 && value == std::floor(value);
  if (!holds_codes(type) || !is_byte) return fmt::format("{:.9g}", value);
  const auto byte = static_cast<unsigned>(value);
  return fmt::format("{:#04x} ({})", byte, meaning(byte, type));
}

}  // namespace aisp::pair
