// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <type_traits>

#ifdef __CUDACC__
#define AISP_HOST_DEVICE __host__ __device__
#else
#define AISP_HOST_DEVICE
#endif

namespace aisp {

// How the values of an input are made: value = f(seed, index), with the same bits on the CPU and on every GPU, so the reference
// of any output can be computed without copying inputs back. Parameters are floats and raw values have 24 bits, so that a fused
// multiply-add cannot change a bit.
struct Pattern {
  enum class Kind : std::uint8_t { uniform, normal, integers, sequence, constant };
  Kind kind = Kind::uniform;
  float low = 0;           // uniform: lower end; normal: mean; constant: the value
  float high = 1;          // uniform: upper end (never reached); normal: standard deviation
  std::int64_t first = 0;  // integers: smallest value; sequence: value at index 0
  std::int64_t last = 0;   // integers: largest value; sequence: step from index to index
};

constexpr Pattern uniform(float low, float high) { return {.kind = Pattern::Kind::uniform, .low = low, .high = high}; }
// Sum of eight uniform 16-bit values (Irwin-Hall), scaled: mean, standard deviation; no value beyond 4.9 deviations.
constexpr Pattern normal(float mean, float deviation) { return {.kind = Pattern::Kind::normal, .low = mean, .high = deviation}; }
constexpr Pattern integers(std::int64_t first, std::int64_t last) {
  return {.kind = Pattern::Kind::integers, .first = first, .last = last};
}
constexpr Pattern sequence(std::int64_t first = 0, std::int64_t step = 1) {
  return {.kind = Pattern::Kind::sequence, .first = first, .last = step};
}
constexpr Pattern constant(float value) { return {.kind = Pattern::Kind::constant, .low = value}; }

// 64 well-mixed bits for (seed, index): the finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
// generators, OOPSLA 2014) over a Weyl sequence.
AISP_HOST_DEVICE constexpr std::uint64_t random_bits(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t z = seed + (index + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

namespace detail {

AISP_HOST_DEVICE inline double pattern_real(const Pattern& pattern, std::uint64_t seed, std::uint64_t index) {
  const std::uint64_t bits = random_bits(seed, index);
  switch (pattern.kind) {
    case Pattern::Kind::uniform: {
      // float difference (24 bits) times 24 random bits is exact in float64, so one rounding remains: the sum.
      const double unit = static_cast<double>(bits >> 40);
      const float span = pattern.high - pattern.low;
      return static_cast<double>(pattern.low) + static_cast<double>(span) * unit * 0x1p-24;
    }
    case Pattern::Kind::normal: {
      const std::uint64_t more = random_bits(~seed, index);
      std::int64_t sum = -4 * 65535;
      for (int shift = 0; shift < 64; shift += 16)
        sum += static_cast<std::int64_t>((bits >> shift) & 0xFFFF) + static_cast<std::int64_t>((more >> shift) & 0xFFFF);
      // variance of one 16-bit value is (2^32 - 1) / 12, of eight 2/3 of 2^32
      const float unit = static_cast<float>(sum) * 1.8688e-5f;
      return static_cast<double>(pattern.low) + static_cast<double>(unit) * static_cast<double>(pattern.high);
    }
    case Pattern::Kind::constant: return static_cast<double>(pattern.low);
    default: return 0;
  }
}

AISP_HOST_DEVICE inline std::int64_t pattern_integer(const Pattern& pattern, std::uint64_t seed, std::uint64_t index) {
  if (pattern.kind == Pattern::Kind::sequence) return pattern.first + static_cast<std::int64_t>(index) * pattern.last;
  if (pattern.kind != Pattern::Kind::integers) return static_cast<std::int64_t>(pattern_real(pattern, seed, index));
  const std::uint64_t range = static_cast<std::uint64_t>(pattern.last - pattern.first) + 1;
  const std::uint64_t bits = random_bits(seed, index);
  if (range == 0) return static_cast<std::int64_t>(bits);
  if (range <= 0xFFFFFFFFull) return pattern.first + static_cast<std::int64_t>(((bits >> 32) * range) >> 32);
  return pattern.first + static_cast<std::int64_t>(bits % range);
}

}  // namespace detail

// Element `index` of a buffer filled from `pattern` with `seed`. T: arithmetic, __half, __nv_bfloat16, FP8.
template <class T>
AISP_HOST_DEVICE inline T pattern_value(const Pattern& pattern, std::uint64_t seed, std::uint64_t index) {
  const bool integral = pattern.kind == Pattern::Kind::integers || pattern.kind == Pattern::Kind::sequence;
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(detail::pattern_integer(pattern, seed, index));
  } else {
    const double real = integral ? static_cast<double>(detail::pattern_integer(pattern, seed, index))
                                 : detail::pattern_real(pattern, seed, index);
    if constexpr (std::is_same_v<T, double>) return real;
    else if constexpr (std::is_same_v<T, float>) return static_cast<float>(real);
    else if constexpr (std::is_same_v<T, __nv_bfloat16>) return __float2bfloat16_rn(static_cast<float>(real));
    else if constexpr (std::is_same_v<T, __half>) return __float2half_rn(static_cast<float>(real));
    else return T(static_cast<float>(real));
  }
}

// Inputs that no Pattern describes (graphs, routing tables, text): filled on the host, then copied to where the buffer lives.
// Must depend on `seed` and nothing else.
template <class T>
using HostFill = std::function<void(std::span<T> values, std::uint64_t seed)>;

}  // namespace aisp
