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

#include "cudnn_attention_steps.hpp"

namespace aisp::shared {

enum class Mask : std::uint8_t { none, causal };

struct AttentionSizes {
  std::size_t batch, heads, kv_heads;  // heads / kv_heads of them share their keys and values
  std::size_t queries, keys, head_size;
  std::size_t value_size = 0;  // of V and O, where it is another
};

// Changes of a score after the scale. The slopes and the window count from the first key: with them there are as many queries as
// keys.
struct AttentionScores {
  enum class Biases : std::uint8_t { by_head, by_sequence };
  std::size_t bias_pitch = 0;       // a bias in bf16, [head or sequence][row][bias_pitch], is added
  Biases biases = Biases::by_head;  // the same for the whole batch, or for all heads
  bool alibi = false;               // a slope for each head in fp32, times the distance of the key after the row, is added
  std::size_t window = 0;           // of the keys that a causal mask leaves, a row sees the last so many
};

// O = softmax(Q K^T / sqrt(head_size)) V in bf16; with the causal mask, a row sees its own key and those before it, the last row
// all of them. Q, K, V and O are dense: [batch][head][row][column]. `more`: the bias or the slopes, where scores have one.
class CudnnAttention {
 public:
  static constexpr Library library = Library::cudnn;

  CudnnAttention(std::size_t batch, std::size_t heads, std::size_t length, std::size_t head_size, Mask mask = Mask::none)
      : CudnnAttention{AttentionSizes{batch, heads, heads, length, length, head_size}, mask} {}
  explicit CudnnAttention(const AttentionSizes& sizes, Mask mask = Mask::none, const AttentionScores& scores = {})
      : batch_{number(sizes.batch)},
        heads_{number(sizes.heads)},
        kv_heads_{number(sizes.kv_heads)},
        queries_{number(sizes.queries)},
        keys_{number(sizes.keys)},
        head_size_{number(sizes.head_size)},
        value_size_{sizes.value_size > 0 ? number(sizes.value_size) : head_size_},
        scale_{static_cast<float>(1 / std::sqrt(static_cast<double>(sizes.head_size)))},
        window_{static_cast<std::int32_t>(scores.window)},
        earlier_{static_cast<std::int32_t>(sizes.keys - sizes.queries)},
        mask_{mask},
        scores_{scores} {}

  // As the library's heuristic chooses: once, before run().
  void plan() {
    if (graph_) return;
    auto graph = described(needs_steps());
    graph->plan();
    graph_ = std::move(graph);
  }
  // Or the fastest that the library has: once; O is overwritten. Without a mask there are two ways to say what is wanted, and the
  // engines behind them are others.
  void tune(cudaStream_t stream, const void* q, const void* k, const void* v, void* o, const void* more = nullptr) {
    if (graph_) return;
    std::vector<std::unique_ptr<cudnn::Graph>> graphs;
    std::string why_not;
    for (const bool in_steps : {false, true}) try {
        if (needs_steps() && !in_steps) continue;
        auto graph = described(in_steps);
        graph->plan_fastest(stream, pointers(q, k, v, o, more));
        graphs.push_back(std::move(graph));
      } catch (const CudaError&) {
        throw;
      } catch (const std::exception& reason) {
        why_not = reason.what();  // the other way may be known to the library
      }
    const auto best = fastest(stream, graphs.size(), [&](std::size_t i) { graphs[i]->run(stream, pointers(q, k, v, o, more)); });
    if (!best) throw Unsupported{why_not};
    graph_ = std::move(graphs[*best]);
  }

  void run(cudaStream_t stream, const void* q, const void* k, const void* v, void* o, const void* more = nullptr) {
    graph_->run(stream, pointers(q, k, v, o, more));
  }

 private:
  static std::int64_t number(std::size_t size) { return static_cast<std::int64_t>(size); }
  bool needs_steps() const { return mask_ == Mask::causal || scores_.bias_pitch > 0 || scores_.alibi; }
  // In the order in which describe_steps() declares them.
  std::vector<const void*> pointers(const void* q, const void* k, const void* v, const void* o, const void* more) const {
    std::vector<const void*> all{q, k, v, o, &scale_};
    if (scores_.bias_pitch > 0 || scores_.alibi) all.push_back(more);
    if (mask_ == Mask::causal) all.push_back(&hidden_);
    if (mask_ == Mask::causal && earlier_ > 0) all.push_back(&earlier_);
    if (scores_.window > 0) all.insert(all.end(), {&hidden_, &window_});
    return all;
  }

  std::unique_ptr<cudnn::Graph> described(bool in_steps) const {
    auto graph = std::make_unique<cudnn::Graph>();
    if (in_steps) describe_steps(*graph);
    else describe(*graph);
    return graph;
  }
  int of_queries(cudnn::Graph& graph) const { return tensor(graph, heads_, queries_, head_size_); }
  int of_results(cudnn::Graph& graph) const { return tensor(graph, heads_, queries_, value_size_); }
  int of_keys(cudnn::Graph& graph) const { return tensor(graph, kv_heads_, keys_, head_size_); }
  int of_values(cudnn::Graph& graph) const { return tensor(graph, kv_heads_, keys_, value_size_); }
  int of_keys_transposed(cudnn::Graph& graph) const {
    const std::int64_t head = keys_ * head_size_;
    return graph.tensor(cudnn::DataType::bf16, {batch_, kv_heads_, head_size_, keys_}, {kv_heads_ * head, head, 1, head_size_});
  }
  int tensor(cudnn::Graph& graph, std::int64_t heads, std::int64_t rows, std::int64_t columns) const {
    const std::int64_t head = rows * columns;
    return graph.tensor(cudnn::DataType::bf16, {batch_, heads, rows, columns}, {heads * head, head, columns, 1});
  }

  void describe(cudnn::Graph& graph) const {
    const int q = of_queries(graph), k = of_keys(graph), v = of_values(graph), o = of_results(graph);
    graph.attention(q, k, v, o, graph.value());
  }

  // The operation above knows no causal mask, so the graph is spelled out, step by step as the library's engines for attention
  // expect it.
  void describe_steps(cudnn::Graph& graph) const {
    using cudnn::DataType, cudnn::Pointwise;
    const cudnn::Sizes square = {batch_, heads_, queries_, keys_};
    const int q = of_queries(graph), k = of_keys_transposed(graph), v = of_values(graph), o = of_results(graph),
              scale = graph.value();
    const auto scores = [&] { return graph.between(DataType::f32, square); };
    const int products = scores();
    int masked = scores();
    graph.matmul(q, k, products);
    graph.pointwise(Pointwise::multiply, products, masked, scale);
    if (scores_.bias_pitch > 0) masked = add_bias(graph, masked, square);
    if (scores_.alibi) masked = add_slope(graph, masked, square);
    if (mask_ == Mask::causal) masked = hide_later_keys(graph, masked, square);
    if (scores_.window > 0) masked = hide_early_keys(graph, masked, square);
    const int weights = softmax_steps(graph, masked, square);
    graph.matmul(weights, v, o);
  }
  int hide_later_keys(cudnn::Graph& graph, int scaled, const cudnn::Sizes& square) const {
    using cudnn::DataType, cudnn::Pointwise;
    const int hidden = graph.value(), row = graph.between(DataType::i32, square), key = graph.between(DataType::i32, square),
              visible = graph.between(DataType::boolean, square), masked = graph.between(DataType::f32, square);
    graph.index(scaled, row, 2);
    graph.index(scaled, key, 3);
    int own = row;
    if (earlier_ > 0) {
      const int earlier = graph.value(DataType::i32);
      own = graph.between(DataType::i32, square);
      graph.pointwise_i32(Pointwise::add, row, own, earlier);
    }
    graph.pointwise(Pointwise::greater_equal, own, visible, key);
    graph.pointwise(Pointwise::select, scaled, masked, hidden, visible);
    return masked;
  }

  int add_bias(cudnn::Graph& graph, int scaled, const cudnn::Sizes& square) const {
    const bool by_head = scores_.biases == AttentionScores::Biases::by_head;
    const std::int64_t pitch = number(scores_.bias_pitch), matrix = queries_ * pitch;
    const int bias = by_head
                         ? graph.tensor(cudnn::DataType::bf16, {1, heads_, queries_, keys_}, {heads_ * matrix, matrix, pitch, 1})
                         : graph.tensor(cudnn::DataType::bf16, {batch_, 1, queries_, keys_}, {matrix, matrix, pitch, 1});
    const int sum = graph.between(cudnn::DataType::f32, square);
    graph.pointwise(cudnn::Pointwise::add, scaled, sum, bias);
    return sum;
  }
  int add_slope(cudnn::Graph& graph, int scaled, const cudnn::Sizes& square) const {
    using cudnn::DataType, cudnn::Pointwise;
    const int slopes = graph.tensor(DataType::f32, {1, heads_, 1, 1}, {heads_, 1, 1, 1});
    const int row = graph.between(DataType::i32, square), key = graph.between(DataType::i32, square),
              distance = graph.between(DataType::i32, square), bias = graph.between(DataType::f32, square),
              sum = graph.between(DataType::f32, square);
    graph.index(scaled, row, 2);
    graph.index(scaled, key, 3);
    graph.pointwise_i32(Pointwise::subtract, key, distance, row);
    graph.pointwise(Pointwise::multiply, distance, bias, slopes);
    graph.pointwise(Pointwise::add, scaled, sum, bias);
    return sum;
  }
  static int hide_early_keys(cudnn::Graph& graph, int scaled, const cudnn::Sizes& square) {
    using cudnn::DataType, cudnn::Pointwise;
    const int hidden = graph.value(), window = graph.value(DataType::i32);
    const int row = graph.between(DataType::i32, square), key = graph.between(DataType::i32, square),
              end = graph.between(DataType::i32, square), visible = graph.between(DataType::boolean, square),
              masked = graph.between(DataType::f32, square);
    graph.index(scaled, row, 2);
    graph.index(scaled, key, 3);
    graph.pointwise_i32(Pointwise::add, key, end, window);
    graph.pointwise(Pointwise::greater, end, visible, row);
    graph.pointwise(Pointwise::select, scaled, masked, hidden, visible);
    return masked;
  }

  std::int64_t batch_, heads_, kv_heads_, queries_, keys_, head_size_, value_size_;
  float scale_, hidden_ = std::numeric_limits<float>::lowest();
  std::int32_t window_;
  std::int32_t earlier_;  // keys that the first row sees besides its own
  Mask mask_;
  AttentionScores scores_;
  std::unique_ptr<cudnn::Graph> graph_;
};

}  // namespace aisp::shared
