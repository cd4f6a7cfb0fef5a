// SPDX-License-Identifier: Apache-2.0
// One token of a decoder in float64 on the CPU, without any rounding between its operations.
#pragma once
#include <cuda_bf16.h>
#include <aisp/buffers.hpp>

#include <cmath>
#include <cstddef>
#include <vector>

#include "decoder/model.hpp"

namespace aisp::ch20 {

// Buffers of a pair, as a Network has them. Caches are [sequence][layer][KV head][position][head_size], with places for so many
// positions of a head; the row that is computed is that of `sequence`.
struct ExactToken {
  const decoder::Shape& s;
  std::size_t sequence, context, positions;
  const Input<__nv_bfloat16>&norms, &qkv, &o, &gate_up, &down, &keys, &values, &embedded;
};

inline std::vector<double> exact_product(const Input<__nv_bfloat16>& weights, std::size_t first_row, std::size_t rows,
                                         const std::vector<double>& x) {
  std::vector<double> y(rows);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t i = 0; i < x.size(); ++i) y[r] += weights.host((first_row + r) * x.size() + i) * x[i];
  return y;
}

// The row after the last norm.
inline std::vector<double> expected_state(const ExactToken& of) {
  using Row = std::vector<double>;
  const auto& multiply = exact_product;
  const auto count = [](int value) { return static_cast<std::size_t>(value); };
  const decoder::Shape& s = of.s;
  const std::size_t hidden = count(s.hidden), ffn = count(s.ffn), size = count(s.head_size), heads = count(s.heads),
                    kv_heads = count(s.kv_heads), queries = heads * size, kv = kv_heads * size;
  Row x(hidden);
  for (std::size_t i = 0; i < hidden; ++i) x[i] = of.embedded.host(of.sequence * hidden + i);
  const auto normed = [&](std::size_t which) {
    double squares = 0;
    for (const double value : x) squares += value * value / static_cast<double>(hidden);
    Row y(hidden);
    for (std::size_t i = 0; i < hidden; ++i) y[i] = x[i] / std::sqrt(squares + 1e-5) * of.norms.host(which * hidden + i);
    return y;
  };
  const auto add = [&](const Row& more) {
    for (std::size_t i = 0; i < hidden; ++i) x[i] += more[i];
  };
  for (std::size_t l = 0; l < count(s.layers); ++l) {
    Row projected = multiply(of.qkv, l * (queries + 2 * kv), queries + 2 * kv, normed(2 * l)), attended(queries);
    for (std::size_t i = 0; i < queries + kv; i += 2) {
      const double angle =
          static_cast<double>(of.context) * std::pow(decoder::rope_base, -static_cast<double>(i % size) / s.head_size);
      const double a = projected[i], b = projected[i + 1];
      projected[i] = a * std::cos(angle) - b * std::sin(angle), projected[i + 1] = b * std::cos(angle) + a * std::sin(angle);
    }
    for (std::size_t h = 0; h < heads; ++h) {
      const std::size_t kv_head = h / count(s.group()),
                        first = ((of.sequence * count(s.layers) + l) * kv_heads + kv_head) * of.positions * size;
      double sum = 0;
      for (std::size_t key = 0; key <= of.context; ++key) {
        const bool is_new = key == of.context;
        const std::size_t own = queries + kv_head * size, cached = first + key * size;
        double score = 0;
        for (std::size_t i = 0; i < size; ++i)
          score += projected[h * size + i] * (is_new ? projected[own + i] : of.keys.host(cached + i));
        const double weight = std::exp(score / std::sqrt(static_cast<double>(size)));
        sum += weight;
        for (std::size_t i = 0; i < size; ++i)
          attended[h * size + i] += weight * (is_new ? projected[own + kv + i] : of.values.host(cached + i));
      }
      for (std::size_t i = 0; i < size; ++i) attended[h * size + i] /= sum;
    }
    add(multiply(of.o, l * hidden, hidden, attended));
    const Row both = multiply(of.gate_up, l * 2 * ffn, 2 * ffn, normed(2 * l + 1));
    Row active(ffn);
    for (std::size_t i = 0; i < ffn; ++i) active[i] = both[i] / (1 + std::exp(-both[i])) * both[ffn + i];
    add(multiply(of.down, l * hidden, hidden, active));
  }
  return normed(2 * count(s.layers));
}

}  // namespace aisp::ch20
