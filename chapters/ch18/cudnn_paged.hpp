// SPDX-License-Identifier: Apache-2.0
// One step of decoding by cuDNN over keys and values in pages: what a user of the library would call.
#pragma once
#include <aisp/libraries/cudnn.hpp>
#include <aisp/opened.hpp>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cudnn_attention_steps.hpp"

namespace aisp::ch18 {

struct CudnnPagedSizes {
  std::size_t batch, heads, kv_heads, head_size;
  std::size_t pages, page_size, table_stride;
};
// Q and O: [sequence][head][head_size] in bf16; K and V: [page][KV head][row][head_size]; a table of page numbers for each
// sequence, of which all must exist; how many rows of queries (1) and keys each sequence has.
struct CudnnPagedOperands {
  const void *q, *k, *v;
  void* o;
  const int *table, *query_lengths, *key_lengths;
};

class CudnnPaged {
 public:
  static constexpr Library library = Library::cudnn;

  explicit CudnnPaged(const CudnnPagedSizes& sizes) : sizes_{sizes} {}

  // The fastest that the library has: once, before run(); O is overwritten. There are two ways to say what is wanted, and
  // versions differ in what they know.
  void tune(cudaStream_t stream, const CudnnPagedOperands& operands) {
    if (graph_) return;
    std::vector<std::unique_ptr<cudnn::Graph>> graphs;
    std::string why_not;
    for (const bool in_steps : {false, true}) try {
        auto graph = std::make_unique<cudnn::Graph>();
        if (in_steps) describe_steps(*graph);
        else describe(*graph);
        graph->plan_fastest(stream, pointers(operands, in_steps));
        graphs.push_back(std::move(graph));
        in_steps_.push_back(in_steps);
      } catch (const CudaError&) {
        throw;
      } catch (const std::exception& reason) {
        why_not = reason.what();
      }
    const auto best =
        fastest(stream, graphs.size(), [&](std::size_t i) { graphs[i]->run(stream, pointers(operands, in_steps_[i])); });
    if (!best) throw Unsupported{why_not};
    graph_ = std::move(graphs[*best]);
    in_steps_ = {in_steps_[*best]};
  }
  void run(cudaStream_t stream, const CudnnPagedOperands& operands) {
    graph_->run(stream, pointers(operands, in_steps_.front()));
  }

 private:
  // In the order in which tensors are declared.
  std::vector<const void*> pointers(const CudnnPagedOperands& of, bool in_steps) const {
    std::vector<const void*> all{of.q, of.k, of.v, of.o, &scale_, of.table, of.table, of.query_lengths, of.key_lengths};
    if (in_steps) all.push_back(&hidden_);
    return all;
  }
  struct Operands {
    int q, k, v, o, scale, k_table, v_table, query_lengths, key_lengths;
  };
  static std::int64_t number(std::size_t size) { return static_cast<std::int64_t>(size); }
  Operands declare(cudnn::Graph& graph) const {
    using cudnn::DataType;
    const std::int64_t batch = number(sizes_.batch), heads = number(sizes_.heads), kv_heads = number(sizes_.kv_heads),
                       columns = number(sizes_.head_size), rows = number(sizes_.page_size), entries = number(sizes_.table_stride);
    const auto of_queries = [&] {
      return graph.tensor(DataType::bf16, {batch, heads, 1, columns}, {heads * columns, columns, columns, 1});
    };
    const auto of_keys = [&] {
      return graph.tensor(DataType::bf16, {number(sizes_.pages), kv_heads, rows, columns},
                          {kv_heads * rows * columns, rows * columns, columns, 1});
    };
    const auto of_entries = [&] { return graph.tensor(DataType::i32, {batch, 1, entries, 1}, {entries, entries, 1, 1}); };
    const auto of_lengths = [&] { return graph.tensor(DataType::i32, {batch, 1, 1, 1}, {1, 1, 1, 1}); };
    Operands all{};
    all.q = of_queries(), all.k = of_keys(), all.v = of_keys(), all.o = of_queries(), all.scale = graph.value();
    all.k_table = of_entries(), all.v_table = of_entries(), all.query_lengths = of_lengths(), all.key_lengths = of_lengths();
    return all;
  }
  void describe(cudnn::Graph& graph) const {
    const Operands of = declare(graph);
    graph.attention(of.q, of.k, of.v, of.o, of.scale,
                    cudnn::Graph::Paging{of.k_table, of.v_table, of.query_lengths, of.key_lengths});
  }
  // Spelled out as the library's engines expect it: pages are loaded, and keys after a sequence's last are hidden.
  void describe_steps(cudnn::Graph& graph) const {
    using cudnn::DataType, cudnn::Pointwise;
    const std::int64_t batch = number(sizes_.batch), heads = number(sizes_.heads), kv_heads = number(sizes_.kv_heads),
                       columns = number(sizes_.head_size), longest = number(sizes_.table_stride * sizes_.page_size);
    const cudnn::Sizes square = {batch, heads, 1, longest};
    const Operands of = declare(graph);
    const int hidden = graph.value();
    const auto scores = [&] { return graph.between(DataType::f32, square); };

    const int k = graph.between(DataType::bf16, {batch, kv_heads, columns, longest},
                                {kv_heads * longest * columns, longest * columns, 1, columns});
    graph.load_pages(of.k, of.key_lengths, of.k_table, k);
    const int products = scores(), scaled = scores(), masked = scores();
    graph.matmul(of.q, k, products, {.rows = of.query_lengths, .columns = of.key_lengths});
    graph.pointwise(Pointwise::multiply, products, scaled, of.scale);
    const int row = graph.between(DataType::i32, square), key = graph.between(DataType::i32, square);
    const int is_row = graph.between(DataType::boolean, square), is_key = graph.between(DataType::boolean, square),
              visible = graph.between(DataType::boolean, square);
    graph.index(scaled, row, 2, DataType::i32);
    graph.index(scaled, key, 3, DataType::i32);
    graph.pointwise(Pointwise::less, row, is_row, of.query_lengths);
    graph.pointwise(Pointwise::less, key, is_key, of.key_lengths);
    graph.pointwise(Pointwise::logical_and, is_row, visible, is_key);
    graph.pointwise(Pointwise::select, scaled, masked, hidden, visible);

    const int weights = shared::softmax_steps(graph, masked, square);
    const int v = graph.between(DataType::bf16, {batch, kv_heads, longest, columns});
    graph.load_pages(of.v, of.key_lengths, of.v_table, v);
    graph.matmul(weights, v, of.o, {.rows = of.query_lengths, .depth = of.key_lengths});
  }

  CudnnPagedSizes sizes_;
  float scale_ = static_cast<float>(1 / std::sqrt(static_cast<double>(sizes_.head_size)));
  float hidden_ = -std::numeric_limits<float>::infinity();
  std::unique_ptr<cudnn::Graph> graph_;
  std::vector<bool> in_steps_;  // of graph_
};

}  // namespace aisp::ch18
