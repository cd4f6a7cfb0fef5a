// SPDX-License-Identifier: Apache-2.0
// Shared by the attention pairs on the host: inputs whose heads differ in how their scores go along the keys, and rows of the
// result in float64, of which some are compared whole.
#pragma once
#include <aisp/buffers.hpp>
#include <aisp/check.hpp>
#include <aisp/tolerance.hpp>

#include <cuda_bf16.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace aisp::ch18 {

constexpr std::size_t head_size = 128;
constexpr double score_scale = 0.088388347648318441, log2_of_e = 1.4426950408889634;  // 1 / sqrt(head_size)

// The layout of Q, K, V or O: element (head, row, column) is head * head + row * row + column. `heads` are of all sequences where
// each has its own.
struct RowLayout {
  std::size_t heads, rows, head, row;  // how many, and their strides

  std::size_t begin(std::size_t of_head, std::size_t of_row) const { return of_head * head + of_row * row; }
  std::size_t elements() const { return heads * rows * head_size; }
  Axis head_axis() const { return {head, heads}; }
  Axis row_axis() const { return {row, rows}; }
  Axis columns() const { return {1, head_size}; }
};
// [head][row][column] and [row][head][column]
inline RowLayout rows_of_heads(std::size_t heads, std::size_t rows) { return {heads, rows, rows * head_size, head_size}; }
inline RowLayout heads_of_rows(std::size_t heads, std::size_t rows) { return {heads, rows, head_size, heads * head_size}; }

// All queries have a 4 in their first column, so that the first column of K adds to all scores of a key.
inline Pattern queries(const RowLayout& q) { return normal(0, 1).set(4, at(q.columns(), 0)); }

// How scores go along the keys of a head.
enum class Along : std::uint8_t {
  varied,   // most heads are flat; in the first scores grow apart, in the second they come together, in the third they rise by 12
            // powers of two every 128 keys, in the fourth they fall
  falling,  // in all heads: a walk from the last key to the first must rescale in every tile
  rising    // a walk from the first to the last must
};

// The staircases end, or begin, at 0: that is where the weights are, and where bf16 is fine enough for a score.
inline Pattern keys(const RowLayout& k, Along along) {
  constexpr float apart = 8;
  const auto step = static_cast<float>(12 / (4 * score_scale * log2_of_e));
  const Places first_column = at(k.columns(), 0), all_keys = all_of(k.row_axis());
  const float lowest = -step * static_cast<float>((k.rows - 1) / 128);
  if (along == Along::falling) return normal(0, 1).set(0, first_column).plus_steps(-step, 128, all_keys, first_column);
  if (along == Along::rising) return normal(0, 1).set(lowest, first_column).plus_steps(step, 128, all_keys, first_column);
  return normal(0, 1)
      .times(1, apart, all_keys, at(k.head_axis(), 0))
      .times(apart, 1, all_keys, at(k.head_axis(), 1))
      .set(lowest, first_column, at(k.head_axis(), 2))
      .plus_steps(step, 128, all_keys, first_column, at(k.head_axis(), 2))
      .plus_steps(-step, 128, all_keys, first_column, at(k.head_axis(), 3));
}

using ResultRow = std::array<double, head_size>;

// Runs act(i) for all i below `count`, on all CPUs.
template <class Act>
void on_all_cpus(std::size_t count, int cpus, const Act& act) {
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> workers;
  for (int w = 0; w < cpus; ++w)
    workers.emplace_back([&] {
      for (std::size_t i = next++; i < count; i = next++) act(i);
    });
  for (std::thread& worker : workers) worker.join();
}

// K and V, kept so that a row's scores of many keys are summed side by side.
class RowReference {
 public:
  explicit RowReference(const RowLayout& of_keys) : layout_{of_keys} {}

  // After every refill.
  template <class T>
  void keep(const Input<T>& k, const Input<T>& v, int cpus) {
    k_.resize(layout_.elements());
    v_.resize(layout_.elements());
    on_all_cpus(layout_.heads, cpus, [&](std::size_t head) {
      for (std::size_t row = 0; row < layout_.rows; ++row)
        for (std::size_t i = 0; i < head_size; ++i) {
          const std::size_t from = layout_.begin(head, row) + i;
          k_[(head * head_size + i) * layout_.rows + row] = static_cast<float>(k.host(from));
          v_[(head * layout_.rows + row) * head_size + i] = static_cast<float>(v.host(from));
        }
    });
  }

  // The result of the query that begins at element `query` of `q` over the keys from `begin` to `end` - 1 of a head. score(scaled
  // product, key) is what goes into the softmax, -infinity where the key is hidden. Zeros if it sees none.
  template <class T, class Score>
  ResultRow row(const Input<T>& q, std::size_t query, std::size_t head, std::size_t begin, std::size_t end,
                const Score& score) const {
    std::vector<double> weights(end - begin);
    for (std::size_t i = 0; i < head_size; ++i) {
      const double factor = q.host(query + i) * score_scale;
      const float* const column = &k_[(head * head_size + i) * layout_.rows];
      for (std::size_t key = begin; key < end; ++key) weights[key - begin] += factor * static_cast<double>(column[key]);
    }
    double highest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (std::size_t key = begin; key < end; ++key) {
      double& weight = weights[key - begin];
      weight = score(weight, key);
      highest = std::max(highest, weight);
    }
    ResultRow result{};
    if (std::isinf(highest)) return result;
    for (std::size_t key = begin; key < end; ++key) {
      const double weight = std::exp(weights[key - begin] - highest);
      if (weight == 0) continue;
      sum += weight;
      const float* const values = &v_[(head * layout_.rows + key) * head_size];
      for (std::size_t i = 0; i < head_size; ++i) result[i] += weight * static_cast<double>(values[i]);
    }
    for (double& value : result) value /= sum;
    return result;
  }
  template <class T>
  ResultRow row(const Input<T>& q, std::size_t query, std::size_t head, std::size_t begin, std::size_t end) const {
    return row(q, query, head, begin, end, [](double scaled, std::size_t) { return scaled; });
  }

 private:
  RowLayout layout_;
  std::vector<float> k_, v_;  // [head][column][row], [head][row][column]
};

// The limit for a row of 128 elements: its weights are rounded to bf16, which is up to 2^-8 of each, and so is the result, which
// is 1.6e-3 on average: 4.2e-3 together. Elements may cancel, whole rows do not.
constexpr double row_limit = 5e-3;

// Limits for outputs in which rows see from one key on. Weights and results are rounded to bf16 once each: 1.6e-3 twice, 2.3e-3
// together; in the few elements of a head that are sampled, twice that. In rows of few keys an element may cancel, and then keeps
// its summands' rounding, up to 2^-8 of values of up to 4.9: 1.9e-2. Beside a head's root mean square, which is 0.045 where rows
// see 16384 keys on average, that is 0.4. Such rows are compared whole, with row_limit.
inline constexpr Tolerance with_short_rows = within(5e-3, 0.4);

// Rows that elements drawn at random seldom meet, compared whole: those at the borders of sequences, tiles and masks.
class CheckedRows {
 public:
  struct Row {
    std::size_t head, row, begin;  // begin: its first element
    ResultRow wanted;
  };

  // In each head those of `rows`; wanted(head, row) computes one.
  template <class Wanted>
  void compute(const RowLayout& o, const std::vector<std::size_t>& rows, int cpus, const Wanted& wanted) {
    rows_.clear();
    for (std::size_t head = 0; head < o.heads; ++head)
      for (const std::size_t row : rows)
        if (row < o.rows) rows_.push_back({head, row, o.begin(head, row), {}});
    on_all_cpus(rows_.size(), cpus, [&](std::size_t i) { rows_[i].wanted = wanted(rows_[i].head, rows_[i].row); });
  }
  // Throws if the relative L2 error of one of them is beyond the limit.
  void compare(const __nv_bfloat16* o, double limit) const {
    std::array<__nv_bfloat16, head_size> found;
    for (const Row& row : rows_) {
      check(cudaMemcpy(found.data(), o + row.begin, sizeof found, cudaMemcpyDeviceToHost));
      double difference = 0, norm = 0;
      for (std::size_t i = 0; i < head_size; ++i) {
        const double error = static_cast<double>(__bfloat162float(found[i])) - row.wanted[i];
        difference += error * error;
        norm += row.wanted[i] * row.wanted[i];
      }
      if (!(difference <= limit * limit * norm))
        throw std::runtime_error{"row " + std::to_string(row.row) + " of head " + std::to_string(row.head) +
                                 " has a relative L2 error of " + std::to_string(std::sqrt(difference / norm))};
    }
  }

 private:
  std::vector<Row> rows_;
};

// Returns eight of `length` rows: those at both ends and at the borders of the first tiles, and a few between.
inline std::vector<std::size_t> border_rows(std::size_t length) {
  std::vector<std::size_t> rows{0, 1, 127, 128, length / 3, length / 2, 2 * length / 3 + 1, length - 1};
  std::ranges::sort(rows);
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

}  // namespace aisp::ch18
