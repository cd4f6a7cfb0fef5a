// SPDX-License-Identifier: Apache-2.0
// Attention by cuDNN: what a user of the library would call.
#pragma once
#include <aisp/libraries/cudnn.hpp>

#include <cmath>
#include <limits>

namespace aisp::shared {

enum class Mask : std::uint8_t { none, causal };

// O = softmax(Q K^T / sqrt(depth)) V in bf16; with the causal mask a row sees its own key and those before it. Q, K, V and O are
// dense: [batch][head][row][depth].
class CudnnAttention {
 public:
  CudnnAttention(std::int64_t batch, std::int64_t heads, std::int64_t length, std::int64_t depth, Mask mask = Mask::none)
      : sizes_{batch, heads, length, depth}, scale_{static_cast<float>(1 / std::sqrt(static_cast<double>(depth)))}, mask_{mask} {
    if (mask == Mask::none) describe();
    else describe_causal();
    graph_.plan();
  }

  void run(cudaStream_t stream, const void* q, const void* k, const void* v, void* o) {
    if (mask_ == Mask::none) graph_.run(stream, {q, k, v, o, &scale_});
    else graph_.run(stream, {q, k, v, o, &scale_, &hidden_});
  }

 private:
  int tensor(bool transposed = false) {
    const auto [batch, heads, length, depth] = sizes_;
    const std::int64_t head = length * depth;
    if (transposed) return graph_.tensor(cudnn::DataType::bf16, {batch, heads, depth, length}, {heads * head, head, 1, depth});
    return graph_.tensor(cudnn::DataType::bf16, sizes_, {heads * head, head, depth, 1});
  }

  void describe() {
    const int q = tensor(), k = tensor(), v = tensor(), o = tensor();
    graph_.attention(q, k, v, o, graph_.value());
  }

  // The operation above knows no causal mask, so the graph is spelled out, step by step as the library's engines for attention
  // expect it.
  void describe_causal() {
    using cudnn::DataType, cudnn::Pointwise, cudnn::Reduction;
    const auto [batch, heads, length, depth] = sizes_;
    const cudnn::Sizes square = {batch, heads, length, length}, column = {batch, heads, length, 1};
    const int q = tensor(), k = tensor(true), v = tensor(), o = tensor(), scale = graph_.value(), hidden = graph_.value();
    const auto scores = [&] { return graph_.between(DataType::f32, square); };
    const int products = scores(), scaled = scores();
    graph_.matmul(q, k, products);
    graph_.pointwise(Pointwise::multiply, products, scaled, scale);
    const int row = graph_.between(DataType::i32, square), key = graph_.between(DataType::i32, square),
              visible = graph_.between(DataType::boolean, square), masked = scores();
    graph_.index(scaled, row, 2);
    graph_.index(scaled, key, 3);
    graph_.pointwise(Pointwise::greater_equal, row, visible, key);
    graph_.pointwise(Pointwise::select, scaled, masked, hidden, visible);
    const int maximum = graph_.between(DataType::f32, column), sum = graph_.between(DataType::f32, column), below = scores(),
              exponentials = scores(), weights = graph_.between(DataType::bf16, square);
    graph_.reduce(Reduction::max, masked, maximum);
    graph_.pointwise(Pointwise::subtract, masked, below, maximum);
    graph_.pointwise(Pointwise::exp, below, exponentials);
    graph_.reduce(Reduction::add, exponentials, sum);
    // Nobody asks for the rows' log-sum-exp, but without it the engines do not recognize the graph.
    const int log_sum = graph_.between(DataType::f32, column), statistics = graph_.between(DataType::f32, column);
    graph_.pointwise(Pointwise::log, sum, log_sum);
    graph_.pointwise(Pointwise::add, maximum, statistics, log_sum);
    graph_.pointwise(Pointwise::divide, exponentials, weights, sum);
    graph_.matmul(weights, v, o);
  }

  cudnn::Sizes sizes_;
  float scale_, hidden_ = std::numeric_limits<float>::lowest();
  Mask mask_;
  cudnn::Graph graph_;
};

}  // namespace aisp::shared
