// SPDX-License-Identifier: Apache-2.0
// The types of numbers that chips calculate with, and what aisp has to know of each: the only list of them.
#pragma once
#include <aisp/workload.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace aisp::machine {

// The first as in Math, in which pairs declare their cost; then what makers state rates of; then what weights alone are kept in.
enum class NumberType : std::uint8_t { fp64, fp64_tensor, fp32, tf32, fp16, bf16, fp8, int8, fp4, int4 };
inline constexpr std::size_t math_kinds = 8, rate_kinds = 9, number_types = 10;

struct NumberTraits {
  std::string_view name;
  double bytes = 0;  // an element, without the scales of its block
  bool on_tensor_cores = true;
};
inline constexpr std::array<NumberTraits, number_types> number_traits = {{{"fp64", 8, false},
                                                                          {"fp64_tensor", 8},
                                                                          {"fp32", 4, false},
                                                                          {"tf32", 4},
                                                                          {"fp16", 2},
                                                                          {"bf16", 2},
                                                                          {"fp8", 1},
                                                                          {"int8", 1},
                                                                          {"fp4", 0.5},
                                                                          {"int4", 0.5}}};

constexpr const NumberTraits& traits_of(NumberType type) { return number_traits[static_cast<std::size_t>(type)]; }
constexpr NumberType number_type(Math math) { return static_cast<NumberType>(math); }
constexpr const NumberTraits& traits_of(Math math) { return traits_of(number_type(math)); }
static_assert(number_type(Math::fp64) == NumberType::fp64 && number_type(Math::fp64_tensor) == NumberType::fp64_tensor &&
              number_type(Math::fp32) == NumberType::fp32 && number_type(Math::tf32) == NumberType::tf32 &&
              number_type(Math::fp16) == NumberType::fp16 && number_type(Math::bf16) == NumberType::bf16 &&
              number_type(Math::fp8) == NumberType::fp8 && number_type(Math::int8) == NumberType::int8);

constexpr std::string_view name_of(NumberType type) { return traits_of(type).name; }
constexpr std::string_view name_of(Math math) { return traits_of(math).name; }

}  // namespace aisp::machine
