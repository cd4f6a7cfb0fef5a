// SPDX-License-Identifier: Apache-2.0
// One step of decoding by cuDNN over keys and values in pages: what a user of the library would call.
#pragma once
#include <aisp/libraries/cudnn.hpp>
#include <aisp/opened.hpp>

#include <cmath>
#include <memory>
#include <vector>

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

  // The fastest that the library has: once, before run(); O is overwritten.
  void tune(cudaStream_t stream, const CudnnPagedOperands& operands) {
    if (graph_) return;
    auto graph = std::make_unique<cudnn::Graph>();
    try {
      describe(*graph);
      graph->plan_fastest(stream, pointers(operands));
    } catch (const CudaError&) {
      throw;
    } catch (const std::exception& reason) {
      throw Unsupported{reason.what()};  // versions differ in what they take
    }
    graph_ = std::move(graph);
  }
  void run(cudaStream_t stream, const CudnnPagedOperands& operands) { graph_->run(stream, pointers(operands)); }

 private:
  std::vector<const void*> pointers(const CudnnPagedOperands& of) const {
    return {of.q, of.k, of.v, of.o, &scale_, of.table, of.table, of.query_lengths, of.key_lengths};
  }
  void describe(cudnn::Graph& graph) const {
    using cudnn::DataType;
    const auto number = [](std::size_t size) { return static_cast<std::int64_t>(size); };
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
    const int q = of_queries(), k = of_keys(), v = of_keys(), o = of_queries(), scale = graph.value();
    const int k_table = of_entries(), v_table = of_entries(), query_lengths = of_lengths(), key_lengths = of_lengths();
    graph.attention(q, k, v, o, scale, cudnn::Graph::Paging{k_table, v_table, query_lengths, key_lengths});
  }

  CudnnPagedSizes sizes_;
  float scale_ = static_cast<float>(1 / std::sqrt(static_cast<double>(sizes_.head_size)));
  std::unique_ptr<cudnn::Graph> graph_;
};

}  // namespace aisp::ch18
