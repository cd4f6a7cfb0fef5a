// SPDX-License-Identifier: Apache-2.0
// Element-wise arithmetic shared by the CPU and the GPU side of memory.hpp.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <aisp/buffers.hpp>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "pair/memory/memory.hpp"

namespace aisp::pair {

template <class T>
AISP_HOST_DEVICE inline double to_double(const void* data, std::size_t index) {
  const T value = static_cast<const T*>(data)[index];
  if constexpr (std::is_arithmetic_v<T>) return static_cast<double>(value);
  else return static_cast<double>(static_cast<float>(value));
}

AISP_HOST_DEVICE inline double load_value(const void* data, ElementType type, std::size_t index) {
  switch (type) {
    case ElementType::f64: return to_double<double>(data, index);
    case ElementType::f32: return to_double<float>(data, index);
    case ElementType::f16: return to_double<__half>(data, index);
    case ElementType::bf16: return to_double<__nv_bfloat16>(data, index);
    case ElementType::e4m3: return to_double<__nv_fp8_e4m3>(data, index);
    case ElementType::e5m2: return to_double<__nv_fp8_e5m2>(data, index);
    case ElementType::i8: return to_double<std::int8_t>(data, index);
    case ElementType::u8:
    case ElementType::e2m1x2:
    case ElementType::s4x2:
    case ElementType::e3m2:
    case ElementType::e8m0: return to_double<std::uint8_t>(data, index);
    case ElementType::i16: return to_double<std::int16_t>(data, index);
    case ElementType::u16: return to_double<std::uint16_t>(data, index);
    case ElementType::i32: return to_double<std::int32_t>(data, index);
    case ElementType::u32: return to_double<std::uint32_t>(data, index);
    case ElementType::i64: return to_double<std::int64_t>(data, index);
    case ElementType::u64: return to_double<std::uint64_t>(data, index);
    default: return 0;
  }
}

AISP_HOST_DEVICE inline void store_pattern(void* data, ElementType type, std::size_t index, const Pattern& pattern,
                                           std::uint64_t seed) {
  const std::uint64_t at = pattern.start + index;
  switch (type) {
    case ElementType::f64: static_cast<double*>(data)[index] = pattern_value<double>(pattern, seed, at); break;
    case ElementType::f32: static_cast<float*>(data)[index] = pattern_value<float>(pattern, seed, at); break;
    case ElementType::f16: static_cast<__half*>(data)[index] = pattern_value<__half>(pattern, seed, at); break;
    case ElementType::bf16: static_cast<__nv_bfloat16*>(data)[index] = pattern_value<__nv_bfloat16>(pattern, seed, at); break;
    case ElementType::e4m3: static_cast<__nv_fp8_e4m3*>(data)[index] = pattern_value<__nv_fp8_e4m3>(pattern, seed, at); break;
    case ElementType::e5m2: static_cast<__nv_fp8_e5m2*>(data)[index] = pattern_value<__nv_fp8_e5m2>(pattern, seed, at); break;
    case ElementType::i8:
    case ElementType::u8:
    case ElementType::e2m1x2:
    case ElementType::s4x2:
    case ElementType::e3m2:
    case ElementType::e8m0: static_cast<std::uint8_t*>(data)[index] = pattern_value<std::uint8_t>(pattern, seed, at); break;
    case ElementType::i16:
    case ElementType::u16: static_cast<std::uint16_t*>(data)[index] = pattern_value<std::uint16_t>(pattern, seed, at); break;
    case ElementType::i32:
    case ElementType::u32: static_cast<std::uint32_t*>(data)[index] = pattern_value<std::uint32_t>(pattern, seed, at); break;
    case ElementType::i64:
    case ElementType::u64: static_cast<std::uint64_t*>(data)[index] = pattern_value<std::uint64_t>(pattern, seed, at); break;
    default: break;
  }
}

AISP_HOST_DEVICE inline bool same_bits(const void* a, const void* b, std::size_t element_bytes, std::size_t index) {
  const auto* x = static_cast<const unsigned char*>(a) + index * element_bytes;
  const auto* y = static_cast<const unsigned char*>(b) + index * element_bytes;
  for (std::size_t i = 0; i < element_bytes; ++i)
    if (x[i] != y[i]) return false;
  return true;
}

AISP_HOST_DEVICE inline bool holds_byte(const void* data, std::size_t element_bytes, std::size_t index, int value) {
  const auto* x = static_cast<const unsigned char*>(data) + index * element_bytes;
  for (std::size_t i = 0; i < element_bytes; ++i)
    if (x[i] != static_cast<unsigned char>(value)) return false;
  return true;
}

// Returns the part of the digest that the 8-byte word at `index` (the last one zero-padded) contributes; parts are added, in any
// order.
AISP_HOST_DEVICE inline std::uint64_t digest_part(const void* data, std::size_t bytes, std::size_t word, const DigestKey& key) {
  const auto* x = static_cast<const unsigned char*>(data) + word * 8;
  const std::size_t left = bytes - word * 8;
  std::uint64_t value = 0;
  if (left >= 8 && reinterpret_cast<std::uintptr_t>(data) % 8 == 0) value = reinterpret_cast<const std::uint64_t*>(data)[word];
  else
    for (std::size_t i = 0; i < (left < 8 ? left : 8); ++i) value |= static_cast<std::uint64_t>(x[i]) << (8 * i);
  return random_bits((value ^ key.mask) * key.factor, word);
}

constexpr bool is_floating(ElementType type) { return type <= ElementType::e5m2; }

AISP_HOST_DEVICE inline bool is_finite(double value) { return value - value == 0; }

struct ElementError {
  double difference_squared = 0;
  double reference_squared = 0;
  double element_error = 0;
  bool mismatch = false;
  bool not_finite = false;
};

// `rms` of the reference; 0 in the first pass, which only needs the squares.
AISP_HOST_DEVICE inline ElementError element_error(double x, double reference, double rms) {
  ElementError error;
  error.reference_squared = reference * reference;
  error.mismatch = !(x == reference);
  if (!is_finite(x)) {
    error.not_finite = true;
    error.difference_squared = error.element_error = INFINITY;
    if (x == reference) error.difference_squared = error.element_error = 0;
    return error;
  }
  const double difference = fabs(x - reference);
  error.difference_squared = difference * difference;
  const double scale = fabs(reference) + rms;
  error.element_error = difference == 0 ? 0 : scale > 0 ? difference / scale : INFINITY;
  return error;
}

// Returns consecutive numbers for the consecutive values of a type; both zeros are 0.
template <class T>
AISP_HOST_DEVICE inline double number_of(T value) {
  if constexpr (std::is_integral_v<T>) return static_cast<double>(value);
  else {
    using Bits = std::conditional_t<
        sizeof(T) == 1, std::uint8_t,
        std::conditional_t<sizeof(T) == 2, std::uint16_t, std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>>;
    constexpr Bits sign = static_cast<Bits>(Bits{1} << (8 * sizeof(T) - 1));
    Bits bits;
    memcpy(&bits, &value, sizeof bits);
    const auto magnitude = static_cast<double>(static_cast<Bits>(bits & static_cast<Bits>(~sign)));
    return (bits & sign) != 0 ? -magnitude : magnitude;
  }
}

template <class T>
AISP_HOST_DEVICE inline double number_of_nearest(double value) {
  if constexpr (std::is_integral_v<T>) {
    constexpr auto least = static_cast<double>(std::numeric_limits<T>::min());
    constexpr auto most = static_cast<double>(std::numeric_limits<T>::max());
    return fmin(fmax(rint(value), least), most);
  } else if constexpr (std::is_same_v<T, double>) return number_of(value);
  else if constexpr (std::is_same_v<T, float>) return number_of(static_cast<float>(value));
  else if constexpr (std::is_same_v<T, __nv_bfloat16>) return number_of(__float2bfloat16_rn(static_cast<float>(value)));
  else if constexpr (std::is_same_v<T, __half>) return number_of(__float2half_rn(static_cast<float>(value)));
  else return number_of(T(static_cast<float>(value)));
}

template <class T>
AISP_HOST_DEVICE inline double steps_of(double value, double reference) {
  return fabs(number_of_nearest<T>(value) - number_of_nearest<T>(reference));
}

// Returns the number of a code of `bits` bits, of which the highest is a sign bit or that of two's complement.
AISP_HOST_DEVICE inline double number_of_code(unsigned code, int bits, bool complement) {
  const unsigned sign = 1u << (bits - 1), magnitude = code & (sign - 1);
  if (complement) return static_cast<double>(magnitude) - static_cast<double>(code & sign);
  return (code & sign) != 0 ? -static_cast<double>(magnitude) : static_cast<double>(magnitude);
}

// Returns the error in steps of byte-sized codes.
AISP_HOST_DEVICE inline double code_steps(double value, double reference, ElementType type) {
  const auto x = static_cast<unsigned>(value), y = static_cast<unsigned>(reference);
  if (type == ElementType::e8m0) return fabs(value - reference);
  if (type == ElementType::e3m2) return fabs(number_of_code(x, 6, false) - number_of_code(y, 6, false));
  const bool complement = type == ElementType::s4x2;
  const double low = fabs(number_of_code(x & 15, 4, complement) - number_of_code(y & 15, 4, complement));
  return fmax(low, fabs(number_of_code(x >> 4 & 15, 4, complement) - number_of_code(y >> 4 & 15, 4, complement)));
}

// Returns the distance in values of `type`; infinite if they differ and one is not finite.
AISP_HOST_DEVICE inline double element_steps(double value, double reference, ElementType type) {
  if (!is_finite(value) || !is_finite(reference)) return value == reference ? 0 : INFINITY;
  switch (type) {
    case ElementType::f64: return steps_of<double>(value, reference);
    case ElementType::f32: return steps_of<float>(value, reference);
    case ElementType::f16: return steps_of<__half>(value, reference);
    case ElementType::bf16: return steps_of<__nv_bfloat16>(value, reference);
    case ElementType::e4m3: return steps_of<__nv_fp8_e4m3>(value, reference);
    case ElementType::e5m2: return steps_of<__nv_fp8_e5m2>(value, reference);
    case ElementType::i8: return steps_of<std::int8_t>(value, reference);
    case ElementType::u8: return steps_of<std::uint8_t>(value, reference);
    case ElementType::i16: return steps_of<std::int16_t>(value, reference);
    case ElementType::u16: return steps_of<std::uint16_t>(value, reference);
    case ElementType::i32: return steps_of<std::int32_t>(value, reference);
    case ElementType::u32: return steps_of<std::uint32_t>(value, reference);
    case ElementType::e2m1x2:
    case ElementType::s4x2:
    case ElementType::e3m2:
    case ElementType::e8m0: return code_steps(value, reference, type);
    default: return fabs(value - reference);
  }
}

}  // namespace aisp::pair
