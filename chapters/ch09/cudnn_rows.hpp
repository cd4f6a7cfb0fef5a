// SPDX-License-Identifier: Apache-2.0
// Norms of rows of bf16 by cuDNN: what a user of the library would call.
#pragma once
#include <aisp/libraries/cudnn.hpp>
#include <aisp/opened.hpp>

#include <memory>
#include <utility>
#include <vector>

namespace aisp::ch09 {

// y = x / sqrt(mean of x^2 + epsilon) * scale for each row.
class CudnnRmsNorm {
 public:
  static constexpr Library library = Library::cudnn;

  CudnnRmsNorm(std::size_t rows, std::size_t columns, double epsilon)
      : rows_{static_cast<std::int64_t>(rows)},
        columns_{static_cast<std::int64_t>(columns)},
        epsilon_{static_cast<float>(epsilon)} {}

  // Takes the fastest of the library's engines, once; `y` is overwritten.
  void tune(cudaStream_t stream, const void* x, const void* scale, void* y) {
    if (graph_) return;
    auto graph = std::make_unique<cudnn::Graph>();
    // Channels are neighbours, as the library's engines for norms expect it.
    const cudnn::Sizes strides{columns_, 1, columns_, columns_};
    const auto tensor = [&](std::int64_t rows) { return graph->tensor(cudnn::DataType::bf16, {rows, columns_, 1, 1}, strides); };
    const int in = tensor(rows_), factors = tensor(1), epsilon = graph->value(), out = tensor(rows_);
    graph->rms_norm(in, factors, epsilon, out);
    graph->plan_fastest(stream, pointers(x, scale, y), static_cast<std::size_t>(rows_ * columns_));
    graph_ = std::move(graph);
  }
  void run(cudaStream_t stream, const void* x, const void* scale, void* y) { graph_->run(stream, pointers(x, scale, y)); }

 private:
  std::vector<const void*> pointers(const void* x, const void* scale, const void* y) const { return {x, scale, &epsilon_, y}; }

  std::int64_t rows_, columns_;
  float epsilon_;
  std::unique_ptr<cudnn::Graph> graph_;
};

}  // namespace aisp::ch09
