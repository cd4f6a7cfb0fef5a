// SPDX-License-Identifier: Apache-2.0
// A chunk of a prompt's prefill by cuDNN: fewer queries than keys, of which the last query sees all. What a user of the library
// would call.
#pragma once
#include <aisp/libraries/cudnn.hpp>
#include <aisp/opened.hpp>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

namespace aisp::ch18 {

struct CudnnChunkSizes {
  std::size_t heads, kv_heads, queries, keys, head_size;
};

// Q, K, V and O in bf16 are dense: [head][row][column].
class CudnnChunk {
 public:
  static constexpr Library library = Library::cudnn;

  explicit CudnnChunk(const CudnnChunkSizes& sizes)
      : sizes_{sizes}, behind_{static_cast<std::int32_t>(sizes.keys - sizes.queries)} {}

  // The fastest of the library's engines: once, before run(); O is overwritten.
  void tune(cudaStream_t stream, const void* q, const void* k, const void* v, void* o) {
    if (graph_) return;
    auto graph = std::make_unique<cudnn::Graph>();
    describe(*graph);
    graph->plan_fastest(stream, pointers(q, k, v, o));
    graph_ = std::move(graph);
  }
  void run(cudaStream_t stream, const void* q, const void* k, const void* v, void* o) {
    graph_->run(stream, pointers(q, k, v, o));
  }

 private:
  static std::int64_t number(std::size_t size) { return static_cast<std::int64_t>(size); }
  // In the order in which tensors are declared.
  std::vector<const void*> pointers(const void* q, const void* k, const void* v, const void* o) const {
    return {q, k, v, o, &scale_, &hidden_, &behind_};
  }
  // Step by step, as the library's engines for attention expect it.
  void describe(cudnn::Graph& graph) const {
    using cudnn::DataType, cudnn::Pointwise, cudnn::Reduction;
    const std::int64_t heads = number(sizes_.heads), kv_heads = number(sizes_.kv_heads), queries = number(sizes_.queries),
                       keys = number(sizes_.keys), columns = number(sizes_.head_size);
    const cudnn::Sizes square = {1, heads, queries, keys}, column = {1, heads, queries, 1};
    const auto rows = [&](std::int64_t of_heads, std::int64_t length) {
      const std::int64_t head = length * columns;
      return graph.tensor(DataType::bf16, {1, of_heads, length, columns}, {of_heads * head, head, columns, 1});
    };
    const auto scores = [&] { return graph.between(DataType::f32, square); };
    const auto statistics = [&] { return graph.between(DataType::f32, column); };
    const auto places = [&] { return graph.between(DataType::i32, square); };
    const int q = rows(heads, queries);
    const int k =
        graph.tensor(DataType::bf16, {1, kv_heads, columns, keys}, {kv_heads * keys * columns, keys * columns, 1, columns});
    const int v = rows(kv_heads, keys), o = rows(heads, queries), scale = graph.value(), hidden = graph.value(),
              behind = graph.value(DataType::i32);
    const int products = scores(), scaled = scores(), masked = scores(), below = scores(), exponentials = scores();
    const int row = places(), key = places(), own = places(), visible = graph.between(DataType::boolean, square);
    const int maximum = statistics(), sum = statistics(), log_sum = statistics(), whole = statistics();
    const int weights = graph.between(DataType::bf16, square);
    graph.matmul(q, k, products);
    graph.pointwise(Pointwise::multiply, products, scaled, scale);
    graph.index(scaled, row, 2, DataType::i32);
    graph.index(scaled, key, 3, DataType::i32);
    graph.pointwise_i32(Pointwise::add, row, own, behind);
    graph.pointwise(Pointwise::greater_equal, own, visible, key);
    graph.pointwise(Pointwise::select, scaled, masked, hidden, visible);
    graph.reduce(Reduction::max, masked, maximum);
    graph.pointwise(Pointwise::subtract, masked, below, maximum);
    graph.pointwise(Pointwise::exp, below, exponentials);
    graph.reduce(Reduction::add, exponentials, sum);
    // Nobody asks for the rows' log-sum-exp, but without it the engines do not recognize the graph.
    graph.pointwise(Pointwise::log, sum, log_sum);
    graph.pointwise(Pointwise::add, maximum, whole, log_sum);
    graph.pointwise(Pointwise::divide, exponentials, weights, sum);
    graph.matmul(weights, v, o);
  }

  CudnnChunkSizes sizes_;
  float scale_ = static_cast<float>(1 / std::sqrt(static_cast<double>(sizes_.head_size)));
  float hidden_ = std::numeric_limits<float>::lowest();
  std::int32_t behind_;  // keys that the first query sees besides its own
  std::unique_ptr<cudnn::Graph> graph_;
};

}  // namespace aisp::ch18
