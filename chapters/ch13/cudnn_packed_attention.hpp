// SPDX-License-Identifier: Apache-2.0
// Causal attention by cuDNN that reads Q, K and V where they lie in one packed tensor.
#pragma once
#include <cuda_bf16.h>
#include <aisp/libraries/cudnn.hpp>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "cudnn_attention_steps.hpp"

namespace aisp::ch13 {

// Packed [batch][token][Q, K, V][head][column] in, [batch][token][head][column] out, in bf16.
class CudnnPackedAttention {
 public:
  static constexpr Library library = Library::cudnn;

  CudnnPackedAttention(std::size_t batch, std::size_t tokens, std::size_t heads, std::size_t head_size)
      : batch_{number(batch)},
        tokens_{number(tokens)},
        heads_{number(heads)},
        head_size_{number(head_size)},
        scale_{static_cast<float>(1 / std::sqrt(static_cast<double>(head_size)))} {}

  // Takes the fastest engine that the library has, once; O is overwritten.
  void tune(cudaStream_t stream, const __nv_bfloat16* qkv, __nv_bfloat16* o) {
    if (graph_) return;
    auto graph = std::make_unique<cudnn::Graph>();
    describe(*graph);
    graph->plan_fastest(stream, pointers(qkv, o));
    graph_ = std::move(graph);
  }
  void run(cudaStream_t stream, const __nv_bfloat16* qkv, __nv_bfloat16* o) { graph_->run(stream, pointers(qkv, o)); }

 private:
  static std::int64_t number(std::size_t size) { return static_cast<std::int64_t>(size); }
  // In the order in which describe() declares them.
  std::vector<const void*> pointers(const __nv_bfloat16* qkv, __nv_bfloat16* o) const {
    const std::int64_t row = heads_ * head_size_;
    return {qkv, qkv + row, qkv + 2 * row, o, &scale_, &hidden_};
  }

  void describe(cudnn::Graph& graph) const {
    using cudnn::DataType, cudnn::Pointwise;
    const std::int64_t row = heads_ * head_size_, packed = 3 * row;
    const cudnn::Sizes rows = {batch_, heads_, tokens_, head_size_}, square = {batch_, heads_, tokens_, tokens_};
    const cudnn::Sizes strides = {tokens_ * packed, head_size_, packed, 1};
    const int q = graph.tensor(DataType::bf16, rows, strides);
    const int k = graph.tensor(DataType::bf16, {batch_, heads_, head_size_, tokens_}, {tokens_ * packed, head_size_, 1, packed});
    const int v = graph.tensor(DataType::bf16, rows, strides);
    const int o = graph.tensor(DataType::bf16, rows, {tokens_ * row, head_size_, row, 1});
    const int scale = graph.value(), hidden = graph.value();
    const auto scores = [&](DataType type = DataType::f32) { return graph.between(type, square); };
    const int products = scores(), scaled = scores(), query = scores(DataType::i32), key = scores(DataType::i32),
              visible = scores(DataType::boolean), masked = scores();
    graph.matmul(q, k, products);
    graph.pointwise(Pointwise::multiply, products, scaled, scale);
    graph.index(scaled, query, 2);
    graph.index(scaled, key, 3);
    graph.pointwise(Pointwise::greater_equal, query, visible, key);
    graph.pointwise(Pointwise::select, scaled, masked, hidden, visible);
    graph.matmul(shared::softmax_steps(graph, masked, square), v, o);
  }

  std::int64_t batch_, tokens_, heads_, head_size_;
  float scale_, hidden_ = std::numeric_limits<float>::lowest();
  std::unique_ptr<cudnn::Graph> graph_;
};

}  // namespace aisp::ch13
