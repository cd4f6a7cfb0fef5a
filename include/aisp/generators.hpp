// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/function.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <type_traits>

#ifdef __CUDACC__
#define AISP_HOST_DEVICE __host__ __device__
#else
#define AISP_HOST_DEVICE
#endif

namespace aisp {

namespace detail {
void pattern_is_full();  // not constexpr: a Pattern takes six changes
}  // namespace detail

// A direction through a buffer: element i is at place i / stride % count. Rows of `columns` elements are Axis{columns, rows}, the
// columns Axis{1, columns}, the heads of [tokens, heads, width] Axis{width, heads}.
struct Axis {
  std::uint64_t stride = 1;
  std::uint64_t count = 1;
  AISP_HOST_DEVICE constexpr std::uint64_t place(std::uint64_t index) const { return count == 1 ? 0 : index / stride % count; }
};

// Some of an axis's places, numbered from 0 in their order.
struct Places {
  Axis axis{};
  std::uint64_t first = 0;
  std::uint64_t count = 1;
  bool drawn = false;  // one random place in each of `count` equal parts of the axis, drawn anew with every seed
};
constexpr Places all_of(Axis axis) { return {axis, 0, axis.count}; }
constexpr Places at(Axis axis, std::uint64_t first, std::uint64_t count = 1) { return {axis, first, count}; }
constexpr Places drawn(Axis axis, std::uint64_t count) { return {axis, 0, count < axis.count ? count : axis.count, true}; }

// The generator of an input's values: value = f(seed, index), with the same bits on the CPU and on every GPU, so the reference of
// any output can be computed without copying inputs back. Parameters are floats and raw values have 24 bits, so that a fused
// multiply-add cannot change a bit. Changes apply one after the other, each rounded to float:
// normal(0, 1).times(20, 100, drawn(channels, 8)).set(0, at(rows, 3)).
struct Pattern {
  enum class Kind : std::uint8_t { uniform, normal, integers, sequence, constant, table };
  Kind kind = Kind::uniform;
  float low = 0;           // uniform: lower end; normal: mean; constant: the value
  float high = 1;          // uniform: upper end (never reached); normal: standard deviation
  std::int64_t first = 0;  // integers: smallest value; sequence: value at index 0
  std::int64_t last = 0;   // integers: largest value; sequence: step from index to index

  // Whole numbers with weights: each bin is a range whose numbers are equally likely.
  static constexpr std::size_t most_bins = 64;
  struct Bin {
    std::int64_t first = 0;
    std::uint32_t width = 1;
    std::uint32_t below = 0;  // the bin is drawn by 32-bit numbers below this, and not below that of the one before
  };
  std::size_t bins = 0;
  Bin bin[most_bins];

  // A change to the elements at all three places, or at as many as are given. Places are numbered among the first.
  struct Change {
    enum class Kind : std::uint8_t { none, times, plus_steps, on_grid, set };
    Kind kind = Kind::none;
    // times: factor at the first place and at the last; plus_steps: height of a step; on_grid: the grid's step; set: the value
    float from = 0, to = 0;
    std::uint64_t run = 1;  // plus_steps: places of a step
    Places where[3];
  };
  static constexpr std::size_t most_changes = 6;
  Change changes[most_changes];

  std::uint64_t start = 0;  // index of a buffer's first element in the whole that the pattern describes; pattern_value() takes
                            // the index in the whole
  // Makes the buffer a part of a whole that begins there: uniform(-1, 1).from(setup.rank() * count).
  constexpr Pattern from(std::uint64_t index) const {
    Pattern result = *this;
    result.start = index;
    return result;
  }

  // Multiplies by a factor that goes from `from` at the first of the places to `to` at the last: a ramp over a whole axis,
  // outliers at drawn places.
  constexpr Pattern times(float from, float to, Places where, Places and_where = {}, Places and_also = {}) const {
    return with({Change::Kind::times, from, to, 1, {where, and_where, and_also}});
  }
  constexpr Pattern times(float factor, Places where, Places and_where = {}, Places and_also = {}) const {
    return times(factor, factor, where, and_where, and_also);
  }
  // Adds a staircase: 0 at the first `run` places, `height` at the next ones, and so on.
  constexpr Pattern plus_steps(float height, std::uint64_t run, Places where, Places and_where = {}, Places and_also = {}) const {
    return with({Change::Kind::plus_steps, height, height, run, {where, and_where, and_also}});
  }
  // Rounds to the nearest multiple of `step`, ties to even. uniform(-4, 4).on_grid(0.25f) makes values from -4 to 4, both
  // reached, a million of which add up exactly in fp32, in any order.
  constexpr Pattern on_grid(float step, Places where = {}, Places and_where = {}, Places and_also = {}) const {
    return with({Change::Kind::on_grid, step, step, 1, {where, and_where, and_also}});
  }
  constexpr Pattern set(float value, Places where, Places and_where = {}, Places and_also = {}) const {
    return with({Change::Kind::set, value, value, 1, {where, and_where, and_also}});
  }
  constexpr Pattern with(const Change& change) const {
    Pattern result = *this;
    for (Change& free : result.changes)
      if (free.kind == Change::Kind::none) {
        free = change;
        return result;
      }
    detail::pattern_is_full();
    return result;
  }
};

constexpr Pattern uniform(float low, float high) {
  Pattern pattern;
  pattern.low = low;
  pattern.high = high;
  return pattern;
}
// Sum of eight uniform 16-bit values (Irwin-Hall), scaled: mean, standard deviation; no value beyond 4.9 deviations.
constexpr Pattern normal(float mean, float deviation) {
  Pattern pattern = uniform(mean, deviation);
  pattern.kind = Pattern::Kind::normal;
  return pattern;
}
constexpr Pattern integers(std::int64_t first, std::int64_t last) {
  Pattern pattern;
  pattern.kind = Pattern::Kind::integers;
  pattern.first = first;
  pattern.last = last;
  return pattern;
}
constexpr Pattern sequence(std::int64_t first = 0, std::int64_t step = 1) {
  Pattern pattern = integers(first, step);
  pattern.kind = Pattern::Kind::sequence;
  return pattern;
}
constexpr Pattern constant(float value) {
  Pattern pattern = uniform(value, value);
  pattern.kind = Pattern::Kind::constant;
  return pattern;
}

// Whole numbers from tables of at most 64 bins, made once on the host. Each of the first bins holds one number, the later ones
// longer and longer ranges of constant density: the distribution in steps.
struct Weighted {
  std::int64_t value;
  double weight;
};
Pattern categorical(std::initializer_list<Weighted> values);
// 0 to count - 1; number k with a probability as 1 / (k + 1)^exponent: words of a vocabulary, rows of an embedding table.
Pattern zipf(std::int64_t count, double exponent = 1);
// least to most; number d with a probability as 1 / d^exponent (from 1 on): degrees of a graph's nodes.
Pattern power_law(std::int64_t least, std::int64_t most, double exponent);
// Lengths around `median`, whose logarithm deviates by sigma; values outside least ... most are clamped to its ends.
Pattern log_normal(double median, double sigma, std::int64_t least, std::int64_t most);
// Bytes as in English text: lower-case letters, spaces and line ends, by their frequency.
Pattern text();

// Returns 64 well-mixed bits for (seed, index): the finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom
// number generators, OOPSLA 2014) over a Weyl sequence.
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

AISP_HOST_DEVICE inline std::int64_t table_integer(const Pattern& pattern, std::uint64_t bits) {
  const auto drawn = static_cast<std::uint32_t>(bits >> 32);
  std::size_t low = 0, high = pattern.bins - 1;  // the last bin takes the rest
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    if (drawn < pattern.bin[middle].below) high = middle;
    else low = middle + 1;
  }
  return pattern.bin[low].first + static_cast<std::int64_t>(((bits & 0xFFFFFFFFull) * pattern.bin[low].width) >> 32);
}

// Returns the number of the element's place among `places`; places.count or more if it is at none of them.
AISP_HOST_DEVICE inline std::uint64_t number_among(const Places& places, std::uint64_t seed, std::uint64_t index) {
  const std::uint64_t place = places.axis.place(index);
  if (!places.drawn) return place - places.first;
  // Part k of n begins at the first place p with p * n / count == k.
  const std::uint64_t part = place * places.count / places.axis.count;
  const std::uint64_t begin = (part * places.axis.count + places.count - 1) / places.count;
  const std::uint64_t end = ((part + 1) * places.axis.count + places.count - 1) / places.count;
  const std::uint64_t chosen = begin + random_bits(seed ^ 0xD6E8FEB86659FD93ull, part) % (end - begin);
  return place == chosen ? part : places.count;
}

// Products of two floats are exact in float64, so that one rounding remains whether or not multiply and add are fused.
AISP_HOST_DEVICE inline double changed(const Pattern::Change& change, std::uint64_t number, double value) {
  const auto before = static_cast<double>(static_cast<float>(value));
  switch (change.kind) {
    case Pattern::Change::Kind::times: {
      const std::uint64_t last = change.where[0].count - 1;
      const double way = last == 0 ? 0 : static_cast<double>(number) / static_cast<double>(last);
      const float span = change.to - change.from;
      const double factor =
          static_cast<double>(change.from) + static_cast<double>(span) * static_cast<double>(static_cast<float>(way));
      return static_cast<double>(static_cast<float>(before * static_cast<double>(static_cast<float>(factor))));
    }
    case Pattern::Change::Kind::plus_steps: {
      const std::uint64_t step = number / change.run;
      return static_cast<double>(static_cast<float>(before + static_cast<double>(change.from) * static_cast<double>(step)));
    }
    case Pattern::Change::Kind::on_grid: {
      const auto step = static_cast<double>(change.from);
      return static_cast<double>(static_cast<float>(rint(before / step) * step));
    }
    case Pattern::Change::Kind::set: return static_cast<double>(change.from);
    default: return value;
  }
}

// Returns false if no change applies to this element, and leaves `value` as it was.
AISP_HOST_DEVICE inline bool apply_changes(const Pattern& pattern, std::uint64_t seed, std::uint64_t index, double& value) {
  bool any = false;
  for (std::size_t c = 0; c < Pattern::most_changes && pattern.changes[c].kind != Pattern::Change::Kind::none; ++c) {
    const Pattern::Change& change = pattern.changes[c];
    const std::uint64_t first = number_among(change.where[0], seed + 3 * c, index);
    if (first >= change.where[0].count) continue;
    if (number_among(change.where[1], seed + 3 * c + 1, index) >= change.where[1].count) continue;
    if (number_among(change.where[2], seed + 3 * c + 2, index) >= change.where[2].count) continue;
    value = changed(change, first, value);
    any = true;
  }
  return any;
}

AISP_HOST_DEVICE inline std::int64_t pattern_integer(const Pattern& pattern, std::uint64_t seed, std::uint64_t index) {
  if (pattern.kind == Pattern::Kind::sequence) return pattern.first + static_cast<std::int64_t>(index) * pattern.last;
  const std::uint64_t bits = random_bits(seed, index);
  if (pattern.kind == Pattern::Kind::table) return table_integer(pattern, bits);
  if (pattern.kind != Pattern::Kind::integers) return static_cast<std::int64_t>(pattern_real(pattern, seed, index));
  const std::uint64_t range = static_cast<std::uint64_t>(pattern.last) - static_cast<std::uint64_t>(pattern.first) + 1;
  if (range != 0 && range <= 0xFFFFFFFFull) return pattern.first + static_cast<std::int64_t>(((bits >> 32) * range) >> 32);
  // Two rounds, because one can be run backwards where a number shows most of its bits: no element tells the seed.
  const std::uint64_t wide = random_bits(seed ^ bits, ~index);
  return static_cast<std::int64_t>(range == 0 ? wide : static_cast<std::uint64_t>(pattern.first) + wide % range);
}

}  // namespace detail

// Returns element `index` of a buffer filled from `pattern` with `seed`. T: arithmetic, __half, __nv_bfloat16, FP8, whose
// conversions from float round to nearest.
template <class T>
AISP_HOST_DEVICE inline T pattern_value(const Pattern& pattern, std::uint64_t seed, std::uint64_t index) {
  const bool integral =
      pattern.kind == Pattern::Kind::integers || pattern.kind == Pattern::Kind::sequence || pattern.kind == Pattern::Kind::table;
  if constexpr (std::is_integral_v<T>) {
    const std::int64_t drawn = detail::pattern_integer(pattern, seed, index);
    auto value = static_cast<double>(drawn);
    return detail::apply_changes(pattern, seed, index, value) ? static_cast<T>(static_cast<std::int64_t>(value))
                                                              : static_cast<T>(drawn);
  } else {
    double real = integral ? static_cast<double>(detail::pattern_integer(pattern, seed, index))
                           : detail::pattern_real(pattern, seed, index);
    detail::apply_changes(pattern, seed, index, real);
    // CPUs and GPUs convert a NaN to different NaNs.
    if constexpr (std::is_same_v<T, double>) return real == real ? real : __builtin_nan("");
    else {
      const float single = real == real ? static_cast<float>(real) : __builtin_nanf("");
      if constexpr (std::is_same_v<T, float>) return single;
      else return T(single);
    }
  }
}

// Fills inputs that no Pattern describes (routing tables, trees) on the host, before they are copied to the buffer's memory. Must
// depend on `seed` and nothing else.
template <class T>
using HostFill = Function<void(std::span<T> values, std::uint64_t seed)>;

}  // namespace aisp
