// SPDX-License-Identifier: Apache-2.0
// Shared by pairs about decoding: inputs in which running maxima rise and fall, and attention of one row in float64.
#pragma once
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "attention/decode.hpp"

namespace aisp::ch18 {

using attention::bf16;

constexpr int head_size = 128, kv_heads = 8;
constexpr Axis dimensions{1, head_size};
inline float score_scale_log2() { return attention::log2_e / std::sqrt(static_cast<float>(head_size)); }

// Most heads are N(0, 1). Keys of head 0 grow eightfold along the axis and those of head 1 shrink; in heads 2 and 3 scores climb
// and descend a staircase of 12 powers of two a step, of at least 128 keys and at most 64 steps.
constexpr float staircase_query = 8, staircase_powers = 12;
inline Pattern keys_in_motion(Axis keys, Axis heads) {
  const float step = staircase_powers / (staircase_query * score_scale_log2());
  const std::uint64_t run = std::max<std::uint64_t>(128, keys.count / 64);
  return normal(0, 1)
      .times(1, 8, all_of(keys), at(heads, 0))
      .times(8, 1, all_of(keys), at(heads, 1))
      .plus_steps(step, run, all_of(keys), at(heads, 2), at(dimensions, 0))
      .plus_steps(-step, run, all_of(keys), at(heads, 3), at(dimensions, 0));
}
// [...][kv_heads][group][head_size]: query heads of a group differ in scale, so that their maxima move apart.
inline Pattern queries_in_motion(std::uint64_t group) {
  return normal(0, 1)
      .times(0.5, 2, all_of(Axis{head_size, group}))
      .set(staircase_query, at(Axis{head_size * group, kv_heads}, 2, 2), at(dimensions, 0));
}

// softmax(q . key / sqrt(head_size)) times values, of no keys 0. query(d), key(row, d) and value(row, d) give float64.
using Row = std::array<double, head_size>;
template <class Query, class Key, class Value>
Row attend(std::size_t keys, Query query, Key key, Value value) {
  Row q{}, result{};
  for (std::size_t d = 0; d < head_size; ++d) q[d] = query(d) / std::sqrt(static_cast<double>(head_size));
  std::vector<double> scores(keys);
  double maximum = -std::numeric_limits<double>::infinity(), sum = 0;
  for (std::size_t row = 0; row < keys; ++row) {
    for (std::size_t d = 0; d < head_size; ++d) scores[row] += q[d] * key(row, d);
    maximum = std::max(maximum, scores[row]);
  }
  for (std::size_t row = 0; row < keys; ++row) {
    const double weight = std::exp(scores[row] - maximum);
    sum += weight;
    if (weight > 1e-20)  // less is lost in float64, too
      for (std::size_t d = 0; d < head_size; ++d) result[d] += weight * value(row, d);
  }
  for (double& x : result) x = keys > 0 ? x / sum : 0;
  return result;
}

}  // namespace aisp::ch18
