// SPDX-License-Identifier: Apache-2.0
// Attention as a graph that cuDNN fuses: what a user of the library would call.
#pragma once
#include <aisp/libraries/cudnn.hpp>

#include <cmath>

namespace aisp::shared {

// O = softmax(Q K^T / sqrt(depth)) V in bf16, without a mask. Q, K, V and O are dense: [batch][head][row][depth].
class CudnnAttention {
 public:
  CudnnAttention(std::int64_t batch, std::int64_t heads, std::int64_t length, std::int64_t depth)
      : scale_{static_cast<float>(1 / std::sqrt(static_cast<double>(depth)))} {
    using cudnn::DataType, cudnn::Pointwise, cudnn::Reduction, cudnn::Sizes;
    const std::int64_t head = length * depth;
    const Sizes rows = {batch, heads, length, depth}, strides = {heads * head, head, depth, 1};
    const Sizes square = {batch, heads, length, length}, column = {batch, heads, length, 1};
    const int q = graph_.tensor(DataType::bf16, rows, strides);
    const int k = graph_.tensor(DataType::bf16, {batch, heads, depth, length}, {heads * head, head, 1, depth});  // transposed
    const int v = graph_.tensor(DataType::bf16, rows, strides);
    const int o = graph_.tensor(DataType::bf16, rows, strides);
    const int scale = graph_.value();
    const auto intermediate = [&](const Sizes& sizes) { return graph_.virtual_tensor(DataType::f32, sizes); };
    const int products = intermediate(square), scores = intermediate(square), maxima = intermediate(column);
    const int differences = intermediate(square), exponentials = intermediate(square), sums = intermediate(column);
    const int weights = graph_.virtual_tensor(DataType::bf16, square);
    graph_.matmul(q, k, products);
    graph_.pointwise(Pointwise::multiply, products, scale, scores);
    graph_.reduction(Reduction::maximum, scores, maxima);
    graph_.pointwise(Pointwise::subtract, scores, maxima, differences);
    graph_.pointwise(Pointwise::exponential, differences, exponentials);
    graph_.reduction(Reduction::sum, exponentials, sums);
    graph_.pointwise(Pointwise::divide, exponentials, sums, weights);
    graph_.matmul(weights, v, o);
    graph_.plan();
  }

  void run(cudaStream_t stream, const void* q, const void* k, const void* v, void* o) {
    graph_.run(stream, {q, k, v, o, &scale_});
  }

 private:
  float scale_;
  cudnn::Graph graph_;
};

}  // namespace aisp::shared
