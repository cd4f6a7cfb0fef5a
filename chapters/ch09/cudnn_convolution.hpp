// SPDX-License-Identifier: Apache-2.0
// A convolution of bf16 images by cuDNN: what a user of the library would call.
#pragma once
#include <aisp/libraries/cudnn.hpp>
#include <aisp/opened.hpp>

#include <memory>
#include <utility>

namespace aisp::ch09 {

// y[image][y][x][out] of x[image][y][x][in] and a filter w[out][line][column][in] of an odd width, stride 1; outside of an image
// lie zeros.
class CudnnConvolution {
 public:
  static constexpr Library library = Library::cudnn;

  struct Shape {
    std::size_t images, height, width, channels_in, channels_out, filter;
  };
  explicit CudnnConvolution(const Shape& shape) : shape_{shape} {}

  // Takes the fastest of the library's engines, once; `y` is overwritten.
  void tune(cudaStream_t stream, const void* x, const void* w, void* y) {
    if (graph_) return;
    auto graph = std::make_unique<cudnn::Graph>();
    const auto& [images, height, width, channels_in, channels_out, filter] = shape_;
    const int from = tensor(*graph, images, height, width, channels_in),
              by = tensor(*graph, channels_out, filter, filter, channels_in),
              to = tensor(*graph, images, height, width, channels_out);
    graph->convolution(from, by, to, static_cast<std::int64_t>(filter / 2));
    graph->plan_fastest(stream, {x, w, y}, images * height * width * channels_in);
    graph_ = std::move(graph);
  }
  void run(cudaStream_t stream, const void* x, const void* w, void* y) { graph_->run(stream, {x, w, y}); }

 private:
  // The library names channels second, wherever they lie in memory.
  static int tensor(cudnn::Graph& graph, std::size_t count, std::size_t lines, std::size_t columns, std::size_t channels) {
    const auto n = static_cast<std::int64_t>(count), h = static_cast<std::int64_t>(lines), w = static_cast<std::int64_t>(columns),
               c = static_cast<std::int64_t>(channels);
    return graph.tensor(cudnn::DataType::bf16, {n, c, h, w}, {h * w * c, 1, w * c, c});
  }

  Shape shape_;
  std::unique_ptr<cudnn::Graph> graph_;
};

}  // namespace aisp::ch09
