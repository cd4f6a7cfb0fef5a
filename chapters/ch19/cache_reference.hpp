// SPDX-License-Identifier: Apache-2.0
// The contents of a cache of codes, as float64 attention sees them: keys and values rounded as the kernels of cache_rows.cuh
// round them.
#pragma once
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace aisp::ch19 {

using CachedRows = std::vector<float>;  // [token][128] of a head
constexpr std::size_t cached_columns = 128;
using AttentionRow = std::array<double, cached_columns>;

inline float through_e4m3(float x, float scale) { return static_cast<float>(__nv_fp8_e4m3{x / scale}) * scale; }
inline void round_to_e4m3(CachedRows& rows, float scale) {
  for (float& x : rows) x = through_e4m3(x, scale);
}

// `count` elements that have a scale in common, `stride` apart.
inline void round_to_int4(float* x, std::size_t count, std::size_t stride) {
  float maximum = 7 * 0x1p-14f;
  for (std::size_t i = 0; i < count; ++i) maximum = std::max(maximum, std::abs(x[i * stride]));
  const float scale = __half2float(__float2half_rn(maximum / 7));
  for (std::size_t i = 0; i < count; ++i) x[i * stride] = std::clamp(std::rint(x[i * stride] / scale), -7.0f, 7.0f) * scale;
}
inline void round_keys_to_int4(CachedRows& rows) {
  constexpr std::size_t group = 32;
  const std::size_t tokens = rows.size() / cached_columns;
  for (std::size_t first = 0; first < tokens; first += group)
    for (std::size_t d = 0; d < cached_columns; ++d)
      round_to_int4(&rows[first * cached_columns + d], std::min(group, tokens - first), cached_columns);
}
inline void round_values_to_int4(CachedRows& rows) {
  for (std::size_t at = 0; at < rows.size(); at += cached_columns) round_to_int4(&rows[at], cached_columns, 1);
}

// softmax(q . key / sqrt(128)) times values.
inline AttentionRow attention_of(const AttentionRow& q, const CachedRows& k, const CachedRows& v) {
  const std::size_t tokens = k.size() / cached_columns;
  std::vector<double> scores(tokens);
  double maximum = -std::numeric_limits<double>::infinity(), sum = 0;
  for (std::size_t token = 0; token < tokens; ++token) {
    for (std::size_t d = 0; d < cached_columns; ++d) scores[token] += q[d] * static_cast<double>(k[token * cached_columns + d]);
    scores[token] /= std::sqrt(static_cast<double>(cached_columns));
    maximum = std::max(maximum, scores[token]);
  }
  AttentionRow result{};
  for (std::size_t token = 0; token < tokens; ++token) {
    const double weight = std::exp(scores[token] - maximum);
    sum += weight;
    for (std::size_t d = 0; d < cached_columns; ++d) result[d] += weight * static_cast<double>(v[token * cached_columns + d]);
  }
  for (double& x : result) x /= sum;
  return result;
}

}  // namespace aisp::ch19
