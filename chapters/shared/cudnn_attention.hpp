// SPDX-License-Identifier: Apache-2.0
// Attention by cuDNN: what a user of the library would call.
#pragma once
#include <aisp/libraries/cudnn.hpp>

#include <cmath>

namespace aisp::shared {

// O = softmax(Q K^T / sqrt(depth)) V in bf16, without a mask. Q, K, V and O are dense: [batch][head][row][depth].
class CudnnAttention {
 public:
  CudnnAttention(std::int64_t batch, std::int64_t heads, std::int64_t length, std::int64_t depth)
      : scale_{static_cast<float>(1 / std::sqrt(static_cast<double>(depth)))} {
    const std::int64_t head = length * depth;
    const cudnn::Sizes sizes = {batch, heads, length, depth}, strides = {heads * head, head, depth, 1};
    const auto tensor = [&] { return graph_.tensor(cudnn::DataType::bf16, sizes, strides); };
    const int q = tensor(), k = tensor(), v = tensor(), o = tensor();
    graph_.attention(q, k, v, o, graph_.value());
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
