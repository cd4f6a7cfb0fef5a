// SPDX-License-Identifier: Apache-2.0
// The backward pass of an RMS norm of rows of bf16 by cuDNN: what a user of the library would call.
#pragma once
#include <aisp/libraries/cudnn.hpp>
#include <aisp/opened.hpp>

#include <memory>
#include <utility>
#include <vector>

namespace aisp::ch13 {

// dx and dscale of y = x * inverse_rms * scale, with the inverse root mean square of each row from the forward pass.
class CudnnRmsNormBackward {
 public:
  static constexpr Library library = Library::cudnn;

  struct Tensors {
    const void *x, *dy, *scale, *inverse_rms, *dscale, *dx;  // inverse_rms and dscale in fp32
  };

  CudnnRmsNormBackward(std::size_t rows, std::size_t columns)
      : rows_{static_cast<std::int64_t>(rows)}, columns_{static_cast<std::int64_t>(columns)} {}

  // Takes the fastest of the library's engines, once; the outputs are overwritten.
  void tune(cudaStream_t stream, const Tensors& tensors) {
    if (graph_) return;
    auto graph = std::make_unique<cudnn::Graph>();
    // Channels are neighbours, as the library's engines for norms expect it.
    const cudnn::Sizes strides{columns_, 1, columns_, columns_}, of_rows{1, 1, 1, 1};
    const auto tensor = [&](cudnn::DataType type, std::int64_t rows) {
      return graph->tensor(type, {rows, columns_, 1, 1}, strides);
    };
    const int x = tensor(cudnn::DataType::bf16, rows_), dy = tensor(cudnn::DataType::bf16, rows_);
    const int scale = tensor(cudnn::DataType::f32, 1);
    const int inverse_rms = graph->tensor(cudnn::DataType::f32, {rows_, 1, 1, 1}, of_rows);
    const int dscale = tensor(cudnn::DataType::f32, 1), dx = tensor(cudnn::DataType::bf16, rows_);
    graph->rms_norm_backward({.x = x, .dy = dy, .scale = scale, .inverse_rms = inverse_rms, .dscale = dscale, .dx = dx});
    graph->plan_fastest(stream, pointers(tensors), static_cast<std::size_t>(rows_ * columns_));
    graph_ = std::move(graph);
  }
  void run(cudaStream_t stream, const Tensors& tensors) { graph_->run(stream, pointers(tensors)); }

 private:
  static std::vector<const void*> pointers(const Tensors& t) { return {t.x, t.dy, t.scale, t.inverse_rms, t.dscale, t.dx}; }

  std::int64_t rows_, columns_;
  std::unique_ptr<cudnn::Graph> graph_;
};

}  // namespace aisp::ch13
