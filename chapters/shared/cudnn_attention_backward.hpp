// SPDX-License-Identifier: Apache-2.0
// The gradients of attention by cuDNN, as a user of the library would ask for them.
#pragma once
#include <aisp/libraries/cudnn.hpp>
#include <aisp/opened.hpp>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

namespace aisp::shared {

struct AttentionGradients {
  std::size_t batch, heads, length, head_size;
  bool deterministic = false;  // equal inputs give equal bits
};

// dQ, dK and dV of causal attention in bf16, for as many queries as keys: all tensors [batch][head][row][head_size], the natural
// log-sum-exps of the rows [batch][head][row].
class CudnnAttentionBackward {
 public:
  static constexpr Library library = Library::cudnn;

  struct Tensors {
    const void *q, *k, *v, *o, *d_o, *log_sums, *d_q, *d_k, *d_v;
    const void *d_q_sums, *deltas;  // scratch in fp32: of dQ's size (without a fixed order), and one for each row
  };

  explicit CudnnAttentionBackward(const AttentionGradients& sizes)
      : batch_{number(sizes.batch)},
        heads_{number(sizes.heads)},
        length_{number(sizes.length)},
        columns_{number(sizes.head_size)},
        deterministic_{sizes.deterministic},
        scale_{static_cast<float>(1 / std::sqrt(static_cast<double>(sizes.head_size)))} {}

  // As the library's heuristic chooses: once, before run().
  void plan() {
    if (graph_) return;
    auto graph = described();
    graph->plan();
    graph_ = std::move(graph);
  }
  // Or the fastest that the library has: once; the outputs are overwritten.
  void tune(cudaStream_t stream, const Tensors& tensors) {
    if (graph_) return;
    auto graph = described();
    graph->plan_fastest(stream, pointers(tensors));
    graph_ = std::move(graph);
  }
  void run(cudaStream_t stream, const Tensors& tensors) { graph_->run(stream, pointers(tensors)); }

 private:
  static std::int64_t number(std::size_t size) { return static_cast<std::int64_t>(size); }
  // In the order in which described() declares them.
  std::vector<const void*> pointers(const Tensors& t) const {
    std::vector<const void*> all{t.q, t.k, t.v, t.o, t.d_o, t.log_sums, t.deltas, t.d_q, t.d_k, t.d_v, &scale_, &one_, &hidden_};
    if (!deterministic_) all.push_back(t.d_q_sums);
    return all;
  }

  // Step by step as the library's engines for the gradients of attention expect it. With a tensor for the sums of dQ they are
  // added in any order; without it dS is written out.
  std::unique_ptr<cudnn::Graph> described() const {
    using cudnn::DataType, cudnn::Pointwise, cudnn::Reduction;
    const std::int64_t head = length_ * columns_;
    const cudnn::Sizes rows = {batch_, heads_, length_, columns_}, row_strides = {heads_ * head, head, columns_, 1};
    const cudnn::Sizes transposed = {batch_, heads_, columns_, length_}, transposed_strides = {heads_ * head, head, 1, columns_};
    const cudnn::Sizes square = {batch_, heads_, length_, length_},
                       square_transposed_strides = {heads_ * length_ * length_, length_ * length_, 1, length_};
    const cudnn::Sizes column = {batch_, heads_, length_, 1}, column_strides = {heads_ * length_, length_, 1, 1};
    auto described = std::make_unique<cudnn::Graph>();
    cudnn::Graph& graph = *described;
    const auto of_rows = [&] { return graph.tensor(DataType::bf16, rows, row_strides); };
    const auto of_keys = [&] { return graph.tensor(DataType::bf16, transposed, transposed_strides); };
    const auto of_sums = [&] { return graph.tensor(DataType::f32, column, column_strides); };
    const auto scores = [&] { return graph.between(DataType::f32, square); };
    const auto narrowed = [&] { return graph.between(DataType::bf16, square, square_transposed_strides); };

    const int q = of_rows(), k = of_keys(), v = of_keys(), o = of_rows(), d_o = of_rows(), log_sums = of_sums(),
              deltas = of_sums(), d_q = of_rows(), d_k = of_rows(), d_v = of_rows(), scale = graph.value(), one = graph.value(),
              hidden = graph.value();

    const int products_of_o = graph.between(DataType::f32, rows), sums = graph.between(DataType::f32, column);
    graph.pointwise(Pointwise::multiply, d_o, products_of_o, o);
    graph.reduce(Reduction::add, products_of_o, sums);
    graph.pointwise(Pointwise::multiply, sums, deltas, one);

    const int products = scores(), scaled = scores(), below = scores(), masked = scores(), weights = scores();
    graph.matmul(q, k, products);
    graph.pointwise(Pointwise::multiply, products, scaled, scale);
    graph.pointwise(Pointwise::subtract, scaled, below, log_sums);
    const int row = graph.between(DataType::i32, square), key = graph.between(DataType::i32, square),
              visible = graph.between(DataType::boolean, square);
    graph.index(below, row, 2);
    graph.index(below, key, 3);
    graph.pointwise(Pointwise::greater_equal, row, visible, key);
    graph.pointwise(Pointwise::select, below, masked, hidden, visible);
    graph.pointwise(Pointwise::exp, masked, weights);

    const int weights_transposed = narrowed();
    graph.reshape(weights, weights_transposed);
    graph.matmul(weights_transposed, d_o, d_v);

    const int d_p = scores(), less = scores(), times = scores(), d_s = scores(), d_s_transposed = narrowed();
    graph.matmul(d_o, v, d_p);
    graph.pointwise(Pointwise::subtract, d_p, less, deltas);
    graph.pointwise(Pointwise::multiply, less, times, weights);
    graph.pointwise(Pointwise::multiply, times, d_s, scale);
    graph.reshape(d_s, d_s_transposed);
    graph.matmul(d_s_transposed, q, d_k);

    const int keys = graph.between(DataType::bf16, rows, row_strides);
    graph.reshape(k, keys);
    if (deterministic_) {
      graph.matmul(d_s, keys, d_q);
      graph.allow_workspace(std::int64_t{1} << 34);  // for dS
    } else {
      const int d_q_sums = graph.tensor(DataType::f32, rows, row_strides);
      graph.matmul(d_s, keys, d_q_sums);
      graph.pointwise(Pointwise::identity, d_q_sums, d_q);
    }
    return described;
  }

  std::int64_t batch_, heads_, length_, columns_;
  bool deterministic_;
  float scale_, one_ = 1, hidden_ = -std::numeric_limits<float>::infinity();
  std::unique_ptr<cudnn::Graph> graph_;
};

}  // namespace aisp::shared
