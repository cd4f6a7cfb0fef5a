// SPDX-License-Identifier: Apache-2.0
// A narrow decoder with random weights, and steps of it that a test puts together on the host.
#pragma once
#include <decoder/arrange.hpp>
#include <decoder/model.hpp>
#include <decoder/pages.hpp>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "device/gpu_test.hpp"

namespace aisp::decoder::test {

inline std::vector<bf16> normal_values(std::size_t count, std::uint64_t seed, double deviation, double mean = 0) {
  std::vector<bf16> values(count);
  const Pattern pattern = normal(static_cast<float>(mean), static_cast<float>(deviation));
  for (std::size_t i = 0; i < count; ++i)
    values[i] = __float2bfloat16_rn(static_cast<float>(detail::pattern_real(pattern, seed, i)));
  return values;
}
inline std::vector<float> angle_table(int positions, int head_size) {
  std::vector<float> table(static_cast<std::size_t>(positions) * static_cast<std::size_t>(head_size));
  angles(head_size)(table, 0);
  return table;
}

class NarrowModel {
 public:
  NarrowModel(const Shape& shape, int rows, int positions)
      : shape_{shape},
        positions_{positions},
        products{shape},
        embedding_{normal_values(size(shape.vocabulary(), shape.hidden), 1, 0.3)},
        norms_{normal_values(size(2 * shape.layers + 1, shape.hidden), 2, 0.1, 1)},
        qkv_{matrix(3, shape.qkv_columns(), shape.hidden, 1)},
        o_{matrix(4, shape.hidden, shape.q_columns(), 2 * shape.layers)},
        gate_up_{matrix(5, 2 * shape.ffn, shape.hidden, 1)},
        down_{matrix(6, shape.hidden, shape.ffn, 2 * shape.layers)},
        head_{normal_values(size(std::max(shape.words, 1), shape.hidden), 7, 1 / std::sqrt(shape.hidden))},
        angles_{angle_table(positions, shape.head_size)},
        x_{poison(rows, shape.hidden)},
        normed_{poison(rows, shape.hidden)},
        qkv_rows_{poison(rows, shape.qkv_columns())},
        attended_{poison(rows, shape.q_columns())},
        delta_{poison(rows, shape.hidden)},
        gate_up_rows_{poison(rows, 2 * shape.ffn)},
        active_{poison(rows, shape.ffn)},
        chosen_{poison(rows, shape.hidden)},
        logits_{std::vector<float>(size(rows, std::max(shape.words, 1)), NAN)},
        values_{std::vector<float>(size(rows, shape.heads * pieces()) * static_cast<std::size_t>(shape.head_size), NAN)},
        sums_{std::vector<float2>(size(rows, shape.heads * pieces()), make_float2(NAN, NAN))},
        tickets_{std::vector<unsigned>(size(2 * rows, shape.kv_heads))},
        integers_{std::vector<int>(BatchMemory::words(rows))},
        next_{std::vector<int>(static_cast<std::size_t>(rows))},
        rows_{rows} {}

  Weights weights() const {
    return {embedding_.get(),
            norms_.get(),
            qkv_.get(),
            o_.get(),
            gate_up_.get(),
            down_.get(),
            shape_.words > 0 ? head_.get() : nullptr,
            angles_.get()};
  }
  Model model() const {
    const Partials partials{values_.get(), sums_.get(), tickets_.get(), pieces(), rows_};
    return {shape_,
            weights(),
            {x_.get(), normed_.get(), qkv_rows_.get(), attended_.get(), delta_.get(), gate_up_rows_.get(), active_.get(),
             chosen_.get(), logits_.get(), partials, tickets_.get() + size(rows_, shape_.kv_heads)},
            &products};
  }
  Batch upload(const Arranged& from, const std::vector<int>& tokens) const {
    Batch batch = BatchMemory::over(integers_.get(), rows_);
    const auto copy = [](const void* to, const auto& source) {
      check(cudaMemcpy(const_cast<void*>(to), source.data(), source.size() * sizeof(source[0]), cudaMemcpyHostToDevice));
    };
    copy(batch.tokens, tokens);
    copy(batch.sequences, from.sequences), copy(batch.positions, from.positions), copy(batch.chosen_rows, from.chosen_rows);
    copy(batch.short_blocks, from.shorts), copy(batch.long_blocks, from.longs);
    BatchMemory::describe(batch, shape_, from);
    return batch;
  }
  int* next() const { return next_.get(); }
  std::vector<int> chosen_tokens() const { return next_.host(); }
  std::vector<bf16> chosen_states() const { return chosen_.host(); }
  int pieces() const { return (positions_ + piece_keys - 1) / piece_keys; }
  std::vector<unsigned> tickets() const { return tickets_.host(); }

 private:
  static std::size_t size(int rows, int columns) { return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns); }
  static std::vector<bf16> poison(int rows, int columns) {
    return std::vector<bf16>(size(rows, columns), bf16{std::numeric_limits<float>::quiet_NaN()});
  }
  std::vector<bf16> matrix(std::uint64_t seed, int outputs, int inputs, int divided) const {
    return normal_values(static_cast<std::size_t>(shape_.layers) * size(outputs, inputs), seed,
                         1 / std::sqrt(static_cast<double>(inputs) * divided));
  }

  Shape shape_;
  int positions_;

 public:
  Products products;

 private:
  OnGpu<bf16> embedding_, norms_, qkv_, o_, gate_up_, down_, head_;
  OnGpu<float> angles_;
  OnGpu<bf16> x_, normed_, qkv_rows_, attended_, delta_, gate_up_rows_, active_, chosen_;
  OnGpu<float> logits_, values_;
  OnGpu<float2> sums_;
  OnGpu<unsigned> tickets_;
  OnGpu<int> integers_, next_;
  int rows_;
};

// A token of a request, and the state that it was chosen from.
struct Chosen {
  int token;
  std::vector<unsigned short> state;
  friend bool operator==(const Chosen&, const Chosen&) = default;
};

// Keys and values of all layers, NaN where nothing has been written.
class CacheMemory {
 public:
  CacheMemory(const Shape& shape, int sequences, int positions)
      : layer_elements{static_cast<std::size_t>(sequences) * static_cast<std::size_t>(positions) *
                       static_cast<std::size_t>(shape.kv_columns())},
        k_{poison(shape)},
        v_{poison(shape)},
        positions_{positions},
        shape_{shape} {}
  attention::ContiguousCache contiguous() const {
    const auto head = static_cast<std::size_t>(shape_.head_size) * static_cast<std::size_t>(positions_);
    return {k_.get(), v_.get(), static_cast<std::size_t>(shape_.head_size), head,
            head * static_cast<std::size_t>(shape_.kv_heads)};
  }
  attention::PagedCache<page_rows> paged(const int* table, int stride) const {
    const auto head = static_cast<std::size_t>(shape_.head_size) * page_rows;
    return {
        k_.get(), v_.get(), static_cast<std::size_t>(shape_.head_size), head, head * static_cast<std::size_t>(shape_.kv_heads),
        table,    stride};
  }
  std::size_t layer_elements;

 private:
  std::vector<bf16> poison(const Shape& shape) const {
    return std::vector<bf16>(layer_elements * static_cast<std::size_t>(shape.layers),
                             bf16{std::numeric_limits<float>::quiet_NaN()});
  }
  OnGpu<bf16> k_, v_;
  int positions_;
  Shape shape_;
};

}  // namespace aisp::decoder::test
