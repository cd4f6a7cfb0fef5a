// SPDX-License-Identifier: Apache-2.0
// Attention by cuDNN: what a user of the library would call.
#pragma once
#include <aisp/libraries/cudnn.hpp>
#include <aisp/opened.hpp>

#include <cmath>
#include <exception>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace aisp::shared {

enum class Mask : std::uint8_t { none, causal };

// O = softmax(Q K^T / sqrt(head_size)) V in bf16; with the causal mask a row sees its own key and those before it. Q, K, V and O
// are dense: [batch][head][row][head_size].
class CudnnAttention {
 public:
  static constexpr Library library = Library::cudnn;

  CudnnAttention(std::size_t batch, std::size_t heads, std::size_t length, std::size_t head_size, Mask mask = Mask::none)
      : sizes_{static_cast<std::int64_t>(batch), static_cast<std::int64_t>(heads), static_cast<std::int64_t>(length),
               static_cast<std::int64_t>(head_size)},
        scale_{static_cast<float>(1 / std::sqrt(static_cast<double>(head_size)))},
        mask_{mask} {}

  // As the library's heuristic chooses: once, before run().
  void plan() {
    if (graph_) return;
    auto graph = described(mask_ == Mask::causal);
    graph->plan();
    graph_ = std::move(graph);
  }
  // Or the fastest that the library has: once; O is overwritten. Without a mask there are two ways to say what is wanted, and the
  // engines behind them are others.
  void tune(cudaStream_t stream, const void* q, const void* k, const void* v, void* o) {
    if (graph_) return;
    std::vector<std::unique_ptr<cudnn::Graph>> graphs;
    std::string why_not;
    for (const bool in_steps : {false, true}) try {
        if (mask_ == Mask::causal && !in_steps) continue;
        auto graph = described(in_steps);
        graph->plan_fastest(stream, pointers(q, k, v, o));
        graphs.push_back(std::move(graph));
      } catch (const CudaError&) {
        throw;
      } catch (const std::exception& reason) {
        why_not = reason.what();  // the other way may be known to the library
      }
    const auto best = fastest(stream, graphs.size(), [&](std::size_t i) { graphs[i]->run(stream, pointers(q, k, v, o)); });
    if (!best) throw Unsupported{why_not};
    graph_ = std::move(graphs[*best]);
  }

  void run(cudaStream_t stream, const void* q, const void* k, const void* v, void* o) {
    graph_->run(stream, pointers(q, k, v, o));
  }

 private:
  std::vector<const void*> pointers(const void* q, const void* k, const void* v, void* o) const {
    if (mask_ == Mask::none) return {q, k, v, o, &scale_};
    return {q, k, v, o, &scale_, &hidden_};
  }

  std::unique_ptr<cudnn::Graph> described(bool in_steps) const {
    auto graph = std::make_unique<cudnn::Graph>();
    if (in_steps) describe_steps(*graph);
    else describe(*graph);
    return graph;
  }
  int tensor(cudnn::Graph& graph, bool transposed = false) const {
    const auto [batch, heads, length, head_size] = sizes_;
    const std::int64_t head = length * head_size;
    if (transposed)
      return graph.tensor(cudnn::DataType::bf16, {batch, heads, head_size, length}, {heads * head, head, 1, head_size});
    return graph.tensor(cudnn::DataType::bf16, sizes_, {heads * head, head, head_size, 1});
  }

  void describe(cudnn::Graph& graph) const {
    const int q = tensor(graph), k = tensor(graph), v = tensor(graph), o = tensor(graph);
    graph.attention(q, k, v, o, graph.value());
  }

  // The operation above knows no causal mask, so the graph is spelled out, step by step as the library's engines for attention
  // expect it.
  void describe_steps(cudnn::Graph& graph) const {
    using cudnn::DataType, cudnn::Pointwise, cudnn::Reduction;
    const auto [batch, heads, length, head_size] = sizes_;
    const cudnn::Sizes square = {batch, heads, length, length}, column = {batch, heads, length, 1};
    const int q = tensor(graph), k = tensor(graph, true), v = tensor(graph), o = tensor(graph), scale = graph.value();
    const auto scores = [&] { return graph.between(DataType::f32, square); };
    const int products = scores();
    int masked = scores();
    graph.matmul(q, k, products);
    graph.pointwise(Pointwise::multiply, products, masked, scale);
    if (mask_ == Mask::causal) masked = hide_later_keys(graph, masked, square);
    const int maximum = graph.between(DataType::f32, column), sum = graph.between(DataType::f32, column), below = scores(),
              exponentials = scores(), weights = graph.between(DataType::bf16, square);
    graph.reduce(Reduction::max, masked, maximum);
    graph.pointwise(Pointwise::subtract, masked, below, maximum);
    graph.pointwise(Pointwise::exp, below, exponentials);
    graph.reduce(Reduction::add, exponentials, sum);
    // Nobody asks for the rows' log-sum-exp, but without it the engines do not recognize the graph.
    const int log_sum = graph.between(DataType::f32, column), statistics = graph.between(DataType::f32, column);
    graph.pointwise(Pointwise::log, sum, log_sum);
    graph.pointwise(Pointwise::add, maximum, statistics, log_sum);
    graph.pointwise(Pointwise::divide, exponentials, weights, sum);
    graph.matmul(weights, v, o);
  }
  static int hide_later_keys(cudnn::Graph& graph, int scaled, const cudnn::Sizes& square) {
    using cudnn::DataType, cudnn::Pointwise;
    const int hidden = graph.value(), row = graph.between(DataType::i32, square), key = graph.between(DataType::i32, square),
              visible = graph.between(DataType::boolean, square), masked = graph.between(DataType::f32, square);
    graph.index(scaled, row, 2);
    graph.index(scaled, key, 3);
    graph.pointwise(Pointwise::greater_equal, row, visible, key);
    graph.pointwise(Pointwise::select, scaled, masked, hidden, visible);
    return masked;
  }

  cudnn::Sizes sizes_;
  float scale_, hidden_ = std::numeric_limits<float>::lowest();
  Mask mask_;
  std::unique_ptr<cudnn::Graph> graph_;
};

}  // namespace aisp::shared
