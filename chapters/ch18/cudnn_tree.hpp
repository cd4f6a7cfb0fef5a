// SPDX-License-Identifier: Apache-2.0
// Attention of draft trees by cuDNN, which knows them as a bias of its own for each sequence: what a user of the library would
// call.
#pragma once
#include <aisp/libraries/cudnn.hpp>
#include <aisp/opened.hpp>

#include <cmath>
#include <memory>
#include <vector>

namespace aisp::ch18 {

struct CudnnTreeSizes {
  std::size_t batch, heads, kv_heads, nodes, keys, head_size, bias_pitch;
};

// O = softmax(Q K^T / sqrt(head_size) + bias) V in bf16. Q, K, V and O are dense: [sequence][head][row][column]; the bias is
// [sequence][node][bias_pitch], the same for all heads.
class CudnnTree {
 public:
  static constexpr Library library = Library::cudnn;

  explicit CudnnTree(const CudnnTreeSizes& sizes) : sizes_{sizes} {}

  // The fastest of the library's engines: once, before run(); O is overwritten.
  void tune(cudaStream_t stream, const void* q, const void* k, const void* v, void* o, const void* bias) {
    if (graph_) return;
    auto graph = std::make_unique<cudnn::Graph>();
    describe(*graph);
    graph->plan_fastest(stream, pointers(q, k, v, o, bias));
    graph_ = std::move(graph);
  }
  void run(cudaStream_t stream, const void* q, const void* k, const void* v, void* o, const void* bias) {
    graph_->run(stream, pointers(q, k, v, o, bias));
  }

 private:
  static std::int64_t number(std::size_t size) { return static_cast<std::int64_t>(size); }
  // In the order in which tensors are declared.
  std::vector<const void*> pointers(const void* q, const void* k, const void* v, const void* o, const void* bias) const {
    return {q, k, v, o, &scale_, bias};
  }
  // Step by step, as the library's engines for attention expect it.
  void describe(cudnn::Graph& graph) const {
    using cudnn::DataType, cudnn::Pointwise, cudnn::Reduction;
    const std::int64_t batch = number(sizes_.batch), heads = number(sizes_.heads), kv_heads = number(sizes_.kv_heads),
                       nodes = number(sizes_.nodes), keys = number(sizes_.keys), columns = number(sizes_.head_size),
                       pitch = number(sizes_.bias_pitch);
    const cudnn::Sizes square = {batch, heads, nodes, keys}, column = {batch, heads, nodes, 1};
    const auto rows = [&](std::int64_t of_heads, std::int64_t length) {
      const std::int64_t head = length * columns;
      return graph.tensor(DataType::bf16, {batch, of_heads, length, columns}, {of_heads * head, head, columns, 1});
    };
    const auto scores = [&] { return graph.between(DataType::f32, square); };
    const auto statistics = [&] { return graph.between(DataType::f32, column); };
    const int q = rows(heads, nodes);
    const int k =
        graph.tensor(DataType::bf16, {batch, kv_heads, columns, keys}, {kv_heads * keys * columns, keys * columns, 1, columns});
    const int v = rows(kv_heads, keys), o = rows(heads, nodes), scale = graph.value();
    const int bias = graph.tensor(DataType::bf16, {batch, 1, nodes, keys}, {nodes * pitch, nodes * pitch, pitch, 1});
    const int products = scores(), scaled = scores(), biased = scores(), below = scores(), exponentials = scores();
    const int maximum = statistics(), sum = statistics(), log_sum = statistics(), whole = statistics();
    const int weights = graph.between(DataType::bf16, square);
    graph.matmul(q, k, products);
    graph.pointwise(Pointwise::multiply, products, scaled, scale);
    graph.pointwise(Pointwise::add, scaled, biased, bias);
    graph.reduce(Reduction::max, biased, maximum);
    graph.pointwise(Pointwise::subtract, biased, below, maximum);
    graph.pointwise(Pointwise::exp, below, exponentials);
    graph.reduce(Reduction::add, exponentials, sum);
    // Nobody asks for the rows' log-sum-exp, but without it the engines do not recognize the graph.
    graph.pointwise(Pointwise::log, sum, log_sum);
    graph.pointwise(Pointwise::add, maximum, whole, log_sum);
    graph.pointwise(Pointwise::divide, exponentials, weights, sum);
    graph.matmul(weights, v, o);
  }

  CudnnTreeSizes sizes_;
  float scale_ = static_cast<float>(1 / std::sqrt(static_cast<double>(sizes_.head_size)));
  std::unique_ptr<cudnn::Graph> graph_;
};

}  // namespace aisp::ch18
