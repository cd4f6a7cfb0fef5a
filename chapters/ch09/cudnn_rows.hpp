// SPDX-License-Identifier: Apache-2.0
// Norms and softmax of rows of bf16 by cuDNN: what a user of the library would call. Types and numbers of the softmax are those
// of cudnn_ops.h, version 9, as far as they are used.
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
    graph->plan_fastest(stream, pointers(x, scale, y));
    graph_ = std::move(graph);
  }
  void run(cudaStream_t stream, const void* x, const void* scale, void* y) { graph_->run(stream, pointers(x, scale, y)); }

 private:
  std::vector<const void*> pointers(const void* x, const void* scale, const void* y) const { return {x, scale, &epsilon_, y}; }

  std::int64_t rows_, columns_;
  float epsilon_;
  std::unique_ptr<cudnn::Graph> graph_;
};

// Softmax of each row, with the maximum subtracted.
class CudnnSoftmax {
 public:
  static constexpr Library library = Library::cudnn;

  CudnnSoftmax(std::size_t rows, std::size_t columns) {
    using cudnn::check, cudnn::function;
    check(function<int(void**)>("cudnnCreate")(&handle_), "cudnnCreate");
    check(function<int(void**)>("cudnnCreateTensorDescriptor")(&rows_), "cudnnCreateTensorDescriptor");
    constexpr int nchw = 0;  // cudnnTensorFormat_t
    check(function<int(void*, int, cudnn::DataType, int, int, int, int)>("cudnnSetTensor4dDescriptor")(
              rows_, nchw, cudnn::DataType::bf16, static_cast<int>(rows), static_cast<int>(columns), 1, 1),
          "cudnnSetTensor4dDescriptor");
  }
  ~CudnnSoftmax() {
    if (rows_ != nullptr) cudnn::function<int(void*)>("cudnnDestroyTensorDescriptor")(rows_);
    if (handle_ != nullptr) cudnn::function<int(void*)>("cudnnDestroy")(handle_);
  }
  CudnnSoftmax(const CudnnSoftmax&) = delete;
  CudnnSoftmax& operator=(const CudnnSoftmax&) = delete;

  void run(cudaStream_t stream, const void* in, void* out) {
    constexpr int accurate = 1, whole_instance = 0;  // cudnnSoftmaxAlgorithm_t, cudnnSoftmaxMode_t
    const float one = 1, zero = 0;
    cudnn::check(set_stream_(handle_, stream), "cudnnSetStream");
    cudnn::check(forward_(handle_, accurate, whole_instance, &one, rows_, in, &zero, rows_, out), "cudnnSoftmaxForward");
  }

 private:
  void *handle_ = nullptr, *rows_ = nullptr;
  int (*set_stream_)(void*, cudaStream_t) = cudnn::function<int(void*, cudaStream_t)>("cudnnSetStream");
  int (*forward_)(void*, int, int, const float*, void*, const void*, const float*, void*, void*) =
      cudnn::function<int(void*, int, int, const float*, void*, const void*, const float*, void*, void*)>("cudnnSoftmaxForward");
};

}  // namespace aisp::ch09
