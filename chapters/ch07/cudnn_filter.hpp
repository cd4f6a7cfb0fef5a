// SPDX-License-Identifier: Apache-2.0
// An image filtered by cuDNN: what a user of the library would call.
#pragma once
#include <aisp/libraries/cudnn.hpp>
#include <aisp/opened.hpp>

#include <memory>
#include <utility>

namespace aisp::ch07 {

// An fp32 image of one channel, correlated with a square filter of odd width; outside the image lie zeros.
class CudnnFilter {
 public:
  static constexpr Library library = Library::cudnn;

  CudnnFilter(std::size_t rows, std::size_t columns, std::size_t width)
      : rows_{static_cast<std::int64_t>(rows)},
        columns_{static_cast<std::int64_t>(columns)},
        width_{static_cast<std::int64_t>(width)} {}

  // As the library's heuristic chooses: once, before run().
  void plan() {
    if (graph_) return;
    auto graph = described();
    graph->plan();
    graph_ = std::move(graph);
  }
  // Or the fastest that the library has: once; `out` is overwritten.
  void tune(cudaStream_t stream, const float* image, const float* filter, float* out) {
    if (graph_) return;
    auto graph = described();
    graph->plan_fastest(stream, {image, filter, out});
    graph_ = std::move(graph);
  }
  void run(cudaStream_t stream, const float* image, const float* filter, float* out) {
    graph_->run(stream, {image, filter, out});
  }

 private:
  static int tensor(cudnn::Graph& graph, std::int64_t rows, std::int64_t columns) {
    return graph.tensor(cudnn::DataType::f32, {1, 1, rows, columns}, {rows * columns, rows * columns, columns, 1});
  }
  std::unique_ptr<cudnn::Graph> described() const {
    auto graph = std::make_unique<cudnn::Graph>();
    const int image = tensor(*graph, rows_, columns_), filter = tensor(*graph, width_, width_),
              out = tensor(*graph, rows_, columns_);
    graph->convolution(image, filter, out, width_ / 2);
    graph->keep_precision();
    return graph;
  }

  std::int64_t rows_, columns_, width_;
  std::unique_ptr<cudnn::Graph> graph_;
};

}  // namespace aisp::ch07
