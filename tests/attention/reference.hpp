// SPDX-License-Identifier: Apache-2.0
// Attention in float64, by its definition, and the data of its tests. Nothing here knows how the kernels divide their work.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

namespace aisp::attention::test {

struct Problem {
  int heads = 1, kv_heads = 1, head_size = 128, value_size = 128;
  std::vector<int> queries, keys;  // of each sequence
  double scale = 0.08838834764831845;
  // (sequence, head, row, key)
  std::function<bool(int, int, int, int)> visible = [](int, int, int, int) { return true; };
  // Changes a scaled product; `distance`: of the key from the one that the row ends with.
  std::function<double(double, int, int)> score = [](double scaled, int, int) { return scaled; };
  // Which head of K and V a head has, if not that of its group.
  std::function<int(int)> other_kv_head;
  // Replaces q_value, k_value and v_value, for a sequence, a head of its kind, a row and a column.
  using Value = std::function<double(int, int, int, int)>;
  Value other_q, other_k, other_v;

  int kv_head(int head) const { return other_kv_head ? other_kv_head(head) : head / (heads / kv_heads); }
  int sequences() const { return static_cast<int>(queries.size()); }
  int offset(int sequence) const { return keys[sequence] - queries[sequence]; }
};

// The nearest bf16, without the types of CUDA.
inline double rounded(double x) {
  const float f = static_cast<float>(x);
  std::uint32_t bits;
  static_assert(sizeof bits == sizeof f);
  std::memcpy(&bits, &f, sizeof f);
  bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000;
  float narrow;
  std::memcpy(&narrow, &bits, sizeof f);
  return narrow;
}

// About normal: twelve uniform numbers less 6, from a hash.
inline double noise(std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d, std::uint64_t e) {
  std::uint64_t state = ((((a * 131 + b) * 8191 + c) * 65537 + d) * 1009 + e) * 0x9E3779B97F4A7C15ull + 1;
  double sum = -6;
  for (int i = 0; i < 12; ++i) {
    state ^= state >> 31;
    state *= 0xD6E8FEB86659FD93ull;
    state ^= state >> 29;
    sum += static_cast<double>(state >> 11) * 0x1p-53;
  }
  return sum;
}

// Heads differ in how their scores go along the keys, by the head of K and V: flat; up by 12 powers of two every 128 keys, so
// that a walk upwards has to rescale in each tile; down; and wide apart at random.
inline double q_value(const Problem&, int sequence, int head, int row, int column) {
  if (column == 0) return 4;
  return rounded(noise(1, sequence, head, row, column));
}
inline double k_value(const Problem& p, int sequence, int head, int key, int column) {
  const double stair = 12 / (4 * p.scale * 1.4426950408889634) * (key / 128);
  const double x = noise(2, sequence, head, key, column);
  if (column == 0) return rounded(head % 4 == 1 ? stair : head % 4 == 2 ? -stair : x);
  return rounded(head % 4 == 3 ? x * 6 : x);
}
inline double v_value(const Problem&, int sequence, int head, int key, int column) {
  return rounded(noise(3, sequence, head, key, column) + 0.25);
}

inline double q_of(const Problem& p, int sequence, int head, int row, int column) {
  return p.other_q ? p.other_q(sequence, head, row, column) : q_value(p, sequence, head, row, column);
}
inline double k_of(const Problem& p, int sequence, int head, int key, int column) {
  return p.other_k ? p.other_k(sequence, head, key, column) : k_value(p, sequence, head, key, column);
}
inline double v_of(const Problem& p, int sequence, int head, int key, int column) {
  return p.other_v ? p.other_v(sequence, head, key, column) : v_value(p, sequence, head, key, column);
}

struct HeadResult {
  std::vector<double> o, log_sums, weights;  // [row][column], [row], and [row][key]
};

inline HeadResult expected(const Problem& p, int sequence, int head) {
  const int rows = p.queries[sequence], keys = p.keys[sequence], kv_head = p.kv_head(head);
  HeadResult result{std::vector<double>(static_cast<std::size_t>(rows) * p.value_size), std::vector<double>(rows),
                    std::vector<double>(static_cast<std::size_t>(rows) * keys)};
  std::vector<double> k(static_cast<std::size_t>(keys) * p.head_size), v(static_cast<std::size_t>(keys) * p.value_size);
  for (int key = 0; key < keys; ++key) {
    for (int i = 0; i < p.head_size; ++i) k[key * p.head_size + i] = k_of(p, sequence, kv_head, key, i);
    for (int i = 0; i < p.value_size; ++i) v[key * p.value_size + i] = v_of(p, sequence, kv_head, key, i);
  }
  for (int row = 0; row < rows; ++row) {
    std::vector<double> q(p.head_size);
    for (int i = 0; i < p.head_size; ++i) q[i] = q_of(p, sequence, head, row, i);
    double* const weights = &result.weights[static_cast<std::size_t>(row) * keys];
    double highest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int key = 0; key < keys; ++key) {
      weights[key] = -std::numeric_limits<double>::infinity();
      if (!p.visible(sequence, head, row, key)) continue;
      double product = 0;
      for (int i = 0; i < p.head_size; ++i) product += q[i] * k[key * p.head_size + i];
      weights[key] = p.score(product * p.scale, head, key - row - p.offset(sequence));
      highest = std::max(highest, weights[key]);
    }
    for (int key = 0; key < keys; ++key) sum += weights[key] = std::isinf(highest) ? 0 : std::exp(weights[key] - highest);
    result.log_sums[row] = highest + std::log(sum);
    for (int key = 0; key < keys; ++key) {
      if (weights[key] == 0) continue;
      weights[key] /= sum;
      for (int i = 0; i < p.value_size; ++i) result.o[row * p.value_size + i] += weights[key] * v[key * p.value_size + i];
    }
    if (std::isinf(highest)) result.log_sums[row] = -std::numeric_limits<double>::infinity();
  }
  return result;
}

// The relative L2 distance; 0 where all are equal, infinite where one is no number.
inline double distance(const std::vector<double>& found, const std::vector<double>& wanted) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (!std::isfinite(found[i])) return std::numeric_limits<double>::infinity();
    difference += (found[i] - wanted[i]) * (found[i] - wanted[i]);
    norm += wanted[i] * wanted[i];
  }
  return difference == 0 ? 0 : std::sqrt(difference / norm);
}

// Weights and results are rounded to bf16 once each: 2.3e-3 together; half as much again is allowed.
constexpr double allowed = 3.5e-3;

}  // namespace aisp::attention::test
