// SPDX-License-Identifier: Apache-2.0
// Convolutions of bf16 images by cuDNN, of stride 1, alone and with what follows in the same plan: a bias, a residual, ReLU.
#pragma once
#include <aisp/libraries/cudnn.hpp>
#include <aisp/opened.hpp>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace aisp::ch20::resnet {

enum class Order : std::uint8_t { channels_first, channels_last };
enum class Then : std::uint8_t { nothing, bias_relu, bias_residual_relu };

class Convolution {
 public:
  static constexpr Library library = Library::cudnn;

  struct Shape {
    std::size_t images, side, channels_in, channels_out, filter;
  };
  struct Tensors {
    const void *x, *w, *y, *bias = nullptr, *residual = nullptr;  // the bias in fp32
  };
  Convolution(const Shape& shape, Order order, Then then) : shape_{shape}, order_{order}, then_{then} {}

  // Takes the fastest of the library's engines, once; `y` is overwritten.
  void tune(cudaStream_t stream, const Tensors& at) {
    if (graph_) return;
    auto graph = described();
    graph->plan_fastest(stream, pointers(at), shape_.images * shape_.side * shape_.side * shape_.channels_in);
    graph_ = std::move(graph);
  }
  void run(cudaStream_t stream, const Tensors& at) { graph_->run(stream, pointers(at)); }

 private:
  // In the order in which described() declares them.
  std::vector<const void*> pointers(const Tensors& at) const {
    std::vector<const void*> all{at.x, at.w, at.y};
    if (then_ != Then::nothing) all.push_back(at.bias);
    if (then_ == Then::bias_residual_relu) all.push_back(at.residual);
    return all;
  }
  std::unique_ptr<cudnn::Graph> described() const {
    using cudnn::DataType, cudnn::Pointwise;
    auto described = std::make_unique<cudnn::Graph>();
    cudnn::Graph& graph = *described;
    const auto number = [](std::size_t count) { return static_cast<std::int64_t>(count); };
    const std::int64_t n = number(shape_.images), side = number(shape_.side), in = number(shape_.channels_in),
                       out = number(shape_.channels_out), taps = number(shape_.filter);
    const cudnn::Sizes results = {n, out, side, side};
    const int x = tensor(graph, {n, in, side, side}), w = tensor(graph, {out, in, taps, taps}), y = tensor(graph, results);
    const std::int64_t zeros = taps / 2;
    if (then_ == Then::nothing) {
      graph.convolution(x, w, y, zeros);
      return described;
    }
    const auto between = [&] { return graph.between(DataType::f32, results, strides(results)); };
    const int bias = graph.tensor(DataType::f32, {1, out, 1, 1}, {out, 1, out, out}), products = between();
    int sums = between();
    graph.convolution(x, w, products, zeros);
    graph.pointwise(Pointwise::add, products, sums, bias);
    if (then_ == Then::bias_residual_relu) {
      const int residual = tensor(graph, results), all = between();
      graph.pointwise(Pointwise::add, sums, all, residual);
      sums = all;
    }
    graph.pointwise(relu, sums, y);
    return described;
  }
  // The library names channels second, wherever they lie in memory.
  cudnn::Sizes strides(const cudnn::Sizes& of) const {
    if (order_ == Order::channels_first) return {of[1] * of[2] * of[3], of[2] * of[3], of[3], 1};
    return {of[1] * of[2] * of[3], 1, of[3] * of[1], of[1]};
  }
  int tensor(cudnn::Graph& graph, const cudnn::Sizes& sizes) const {
    return graph.tensor(cudnn::DataType::bf16, sizes, strides(sizes));
  }

  static constexpr auto relu = static_cast<cudnn::Pointwise>(100);  // CUDNN_POINTWISE_RELU_FWD

  Shape shape_;
  Order order_;
  Then then_;
  std::unique_ptr<cudnn::Graph> graph_;
};

}  // namespace aisp::ch20::resnet
