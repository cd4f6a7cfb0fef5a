// SPDX-License-Identifier: Apache-2.0
// A decoder's weights and workspaces as buffers of a pair.
#pragma once
#include <aisp/opened.hpp>
#include <aisp/setup.hpp>

#include <cmath>

#include "decoder.hpp"

namespace aisp::decoder {

constexpr double rope_base = 500000;

// [position][pair]: cosine and sine.
inline HostFill<float> angles(int head_size) {
  return [head_size](std::span<float> table, std::uint64_t) {
    const auto columns = static_cast<std::size_t>(head_size);
    for (std::size_t i = 0; i < table.size(); i += 2) {
      const double angle = static_cast<double>(i / columns) * std::pow(rope_base, -static_cast<double>(i % columns) / head_size);
      table[i] = static_cast<float>(std::cos(angle)), table[i + 1] = static_cast<float>(std::sin(angle));
    }
  };
}

// The most that a step may have.
struct Capacity {
  int rows, chosen;
  int positions;   // of any sequence
  int split_rows;  // rows of short blocks and of long ones that are split stand among the first `split_rows`
  int blocks = 0;  // of either kind, that may be split; 0: as many as split_rows
  int most_pieces() const { return (positions + piece_keys - 1) / piece_keys; }
};

// Buffers for the rows of a step, on one of the pair's GPUs.
class Workspaces {
 public:
  Workspaces(Setup& setup, const Shape& shape, const Capacity& capacity, int device = 0)
      : capacity_{capacity},
        heads_{shape.heads},
        x_{setup.scratch<bf16>(count(capacity.rows, shape.hidden), {.device = device})},
        normed_{setup.scratch<bf16>(count(capacity.rows, shape.hidden), {.device = device})},
        qkv_rows_{setup.scratch<bf16>(count(capacity.rows, shape.qkv_columns()), {.device = device})},
        attended_{setup.scratch<bf16>(count(capacity.rows, shape.q_columns()), {.device = device})},
        delta_{setup.scratch<bf16>(count(capacity.rows, shape.hidden), {.device = device})},
        gate_up_rows_{setup.scratch<bf16>(count(capacity.rows, 2 * shape.ffn), {.device = device})},
        active_{setup.scratch<bf16>(count(capacity.rows, shape.ffn), {.device = device})},
        chosen_{setup.scratch<bf16>(count(capacity.chosen, shape.hidden), {.device = device})},
        logits_{setup.scratch<float>(count(capacity.chosen, std::max(shape.words, 1)), {.device = device})},
        values_{setup.scratch<float>(states() * static_cast<std::size_t>(shape.head_size), {.device = device})},
        sums_{setup.scratch<float>(2 * states(), {.device = device})},
        tickets_{setup.scratch<unsigned>(2 * blocks() * static_cast<std::size_t>(shape.kv_heads), {.device = device})} {}

  // In the prepare of each variant, before anything runs: scratch has been poisoned.
  void clear(cudaStream_t stream) const { check(cudaMemsetAsync(tickets_, 0, tickets_.bytes(), stream)); }

  Workspace view() const {
    const Partials partials{values_, reinterpret_cast<float2*>(sums_.get()), tickets_, capacity_.most_pieces(),
                            capacity_.split_rows};
    return {x_,
            normed_,
            qkv_rows_,
            attended_,
            delta_,
            gate_up_rows_,
            active_,
            chosen_,
            logits_,
            partials,
            tickets_.get() + tickets_.size() / 2};
  }

 private:
  static std::size_t count(int rows, int columns) { return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns); }
  std::size_t states() const { return count(capacity_.split_rows, heads_ * capacity_.most_pieces()); }
  std::size_t blocks() const { return static_cast<std::size_t>(capacity_.blocks > 0 ? capacity_.blocks : capacity_.split_rows); }

  Capacity capacity_;
  int heads_;
  Scratch<bf16> x_, normed_, qkv_rows_, attended_, delta_, gate_up_rows_, active_, chosen_;
  Scratch<float> logits_, values_, sums_;
  Scratch<unsigned> tickets_;
};

// Weights are normal with a deviation of 1 / sqrt(inputs), those of o and down of 1 / sqrt(2 layers) of that; embeddings of 0.3,
// about what a layer adds to them.
class Buffers {
 public:
  Buffers(Setup& setup, const Shape& shape, const Capacity& capacity)
      : shape_{shape},
        products_{shape},
        embedding_{
            setup.input<bf16>(count(shape.vocabulary(), shape.hidden), normal(0, 0.3f), {.name = "embedding", .constant = true})},
        norms_{
            setup.input<bf16>(count(2 * shape.layers + 1, shape.hidden), normal(1, 0.1f), {.name = "norms", .constant = true})},
        qkv_{matrix(setup, "qkv", shape.qkv_columns(), shape.hidden, 1)},
        o_{matrix(setup, "o", shape.hidden, shape.q_columns(), 2 * shape.layers)},
        gate_up_{matrix(setup, "gate and up", 2 * shape.ffn, shape.hidden, 1)},
        down_{matrix(setup, "down", shape.hidden, shape.ffn, 2 * shape.layers)},
        head_{setup.input<bf16>(count(std::max(shape.words, 1), shape.hidden), normal(0, deviation(shape.hidden, 1)),
                                {.name = "head", .constant = true})},
        angles_{setup.input<float>(count(capacity.positions, shape.head_size), angles(shape.head_size),
                                   {.name = "angles", .constant = true})},
        workspaces_{setup, shape, capacity} {}

  // In the prepare of each variant, before anything runs: scratch has been poisoned.
  void clear(cudaStream_t stream) const { workspaces_.clear(stream); }
  void tune(const CublasLt& lt, cudaStream_t stream, int rows, int chosen) {
    products_.tune(lt, stream, weights(), rows, chosen);
  }

  Weights weights() const {
    return {embedding_, norms_, qkv_, o_, gate_up_, down_, shape_.words > 0 ? head_.get() : nullptr, angles_};
  }
  Model model() const { return {shape_, weights(), workspaces_.view(), &products_}; }
  const Shape& shape() const { return shape_; }

 private:
  static std::size_t count(int rows, int columns) { return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns); }
  static float deviation(int inputs, int divided) {
    return 1 / std::sqrt(static_cast<float>(inputs) * static_cast<float>(divided));
  }
  Input<bf16> matrix(Setup& setup, const char* name, int outputs, int inputs, int divided) const {
    return setup.input<bf16>(static_cast<std::size_t>(shape_.layers) * count(outputs, inputs),
                             normal(0, deviation(inputs, divided)), {.name = name, .constant = true});
  }

  Shape shape_;
  Products products_;
  Input<bf16> embedding_, norms_, qkv_, o_, gate_up_, down_, head_;
  Input<float> angles_;
  Workspaces workspaces_;
};

}  // namespace aisp::decoder
