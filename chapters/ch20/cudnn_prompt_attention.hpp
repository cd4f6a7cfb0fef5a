// SPDX-License-Identifier: Apache-2.0
// Causal attention of one prompt by cuDNN, with grouped heads: queries where the packed projection has them, keys and values in a
// cache whose rows hold all heads.
#pragma once
#include <cuda_bf16.h>
#include <aisp/libraries/cudnn.hpp>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "cudnn_attention_steps.hpp"

namespace aisp::ch20 {

struct PromptSizes {
  std::size_t tokens, heads, kv_heads, head_size;
  std::size_t query_pitch;  // elements from one row of queries to the next
};

class CudnnPromptAttention {
 public:
  static constexpr Library library = Library::cudnn;

  explicit CudnnPromptAttention(const PromptSizes& sizes)
      : tokens_{number(sizes.tokens)},
        heads_{number(sizes.heads)},
        kv_heads_{number(sizes.kv_heads)},
        head_size_{number(sizes.head_size)},
        query_pitch_{number(sizes.query_pitch)},
        scale_{static_cast<float>(1 / std::sqrt(static_cast<double>(sizes.head_size)))} {}

  // Takes the fastest engine that the library has, once; O is overwritten.
  void tune(cudaStream_t stream, const __nv_bfloat16* q, const __nv_bfloat16* k, const __nv_bfloat16* v, __nv_bfloat16* o) {
    if (graph_) return;
    auto graph = std::make_unique<cudnn::Graph>();
    describe(*graph);
    graph->plan_fastest(stream, pointers(q, k, v, o));
    graph_ = std::move(graph);
  }
  void run(cudaStream_t stream, const __nv_bfloat16* q, const __nv_bfloat16* k, const __nv_bfloat16* v, __nv_bfloat16* o) {
    graph_->run(stream, pointers(q, k, v, o));
  }

 private:
  static std::int64_t number(std::size_t size) { return static_cast<std::int64_t>(size); }
  // In the order in which describe() declares them.
  std::vector<const void*> pointers(const __nv_bfloat16* q, const __nv_bfloat16* k, const __nv_bfloat16* v,
                                    __nv_bfloat16* o) const {
    return {q, k, v, o, &scale_, &hidden_};
  }

  void describe(cudnn::Graph& graph) const {
    using cudnn::DataType, cudnn::Pointwise;
    const std::int64_t cache_pitch = kv_heads_ * head_size_, out_pitch = heads_ * head_size_;
    const cudnn::Sizes rows = {1, heads_, tokens_, head_size_}, square = {1, heads_, tokens_, tokens_};
    const int q = graph.tensor(DataType::bf16, rows, {tokens_ * query_pitch_, head_size_, query_pitch_, 1});
    const int k =
        graph.tensor(DataType::bf16, {1, kv_heads_, head_size_, tokens_}, {tokens_ * cache_pitch, head_size_, 1, cache_pitch});
    const int v =
        graph.tensor(DataType::bf16, {1, kv_heads_, tokens_, head_size_}, {tokens_ * cache_pitch, head_size_, cache_pitch, 1});
    const int o = graph.tensor(DataType::bf16, rows, {tokens_ * out_pitch, head_size_, out_pitch, 1});
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

  std::int64_t tokens_, heads_, kv_heads_, head_size_, query_pitch_;
  float scale_, hidden_ = std::numeric_limits<float>::lowest();
  std::unique_ptr<cudnn::Graph> graph_;
};

}  // namespace aisp::ch20
