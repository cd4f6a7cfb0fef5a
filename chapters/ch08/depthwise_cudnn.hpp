// SPDX-License-Identifier: Apache-2.0
// A depthwise convolution in fp32 by cuDNN, as frameworks call it: a convolution in as many groups as channels, in products of
// full precision (TF32 off). Types and numbers are those of cudnn_cnn.h, version 9, as far as they are used.
#pragma once
#include <aisp/libraries/cudnn.hpp>
#include <aisp/opened.hpp>

#include <array>
#include <cstddef>
#include <optional>
#include <stdexcept>

namespace aisp::ch08 {

class CudnnDepthwise {
 public:
  static constexpr Library library = Library::cudnn;

  CudnnDepthwise(int batch, int channels, int side, int taps) {
    using cudnn::check, cudnn::function;
    check(function<int(void**)>("cudnnCreate")(&handle_), "cudnnCreate");
    check(function<int(void**)>("cudnnCreateTensorDescriptor")(&images_), "cudnnCreateTensorDescriptor");
    check(function<int(void*, int, int, int, int, int, int)>("cudnnSetTensor4dDescriptor")(images_, nchw, f32, batch, channels,
                                                                                           side, side),
          "cudnnSetTensor4dDescriptor");
    check(function<int(void**)>("cudnnCreateFilterDescriptor")(&filter_), "cudnnCreateFilterDescriptor");
    check(function<int(void*, int, int, int, int, int, int)>("cudnnSetFilter4dDescriptor")(filter_, f32, nchw, channels, 1, taps,
                                                                                           taps),
          "cudnnSetFilter4dDescriptor");
    check(function<int(void**)>("cudnnCreateConvolutionDescriptor")(&convolution_), "cudnnCreateConvolutionDescriptor");
    check(function<int(void*, int, int, int, int, int, int, int, int)>("cudnnSetConvolution2dDescriptor")(
              convolution_, taps / 2, taps / 2, 1, 1, 1, 1, cross_correlation, f32),
          "cudnnSetConvolution2dDescriptor");
    check(function<int(void*, int)>("cudnnSetConvolutionGroupCount")(convolution_, channels), "cudnnSetConvolutionGroupCount");
    check(function<int(void*, int)>("cudnnSetConvolutionMathType")(convolution_, fma_math), "cudnnSetConvolutionMathType");
  }
  ~CudnnDepthwise() {
    using cudnn::function;
    cudaFree(workspace_);
    if (convolution_ != nullptr) function<int(void*)>("cudnnDestroyConvolutionDescriptor")(convolution_);
    if (filter_ != nullptr) function<int(void*)>("cudnnDestroyFilterDescriptor")(filter_);
    if (images_ != nullptr) function<int(void*)>("cudnnDestroyTensorDescriptor")(images_);
    if (handle_ != nullptr) function<int(void*)>("cudnnDestroy")(handle_);
  }
  CudnnDepthwise(const CudnnDepthwise&) = delete;
  CudnnDepthwise& operator=(const CudnnDepthwise&) = delete;

  // Takes the fastest of the library's algorithms that has no use for more than a gigabyte of workspace, once; `out` is
  // overwritten.
  void tune(cudaStream_t stream, const float* in, const float* weights, float* out) {
    if (chosen_) return;
    for (int algorithm = 0; algorithm < algorithms; ++algorithm) {
      std::size_t& bytes = bytes_[static_cast<std::size_t>(algorithm)];
      const auto size_of =
          cudnn::function<int(void*, void*, void*, void*, void*, int, std::size_t*)>("cudnnGetConvolutionForwardWorkspaceSize");
      if (size_of(handle_, images_, filter_, convolution_, images_, algorithm, &bytes) != 0) bytes = refused;
      if (bytes <= most_workspace_bytes) workspace_bytes_ = std::max(workspace_bytes_, bytes);
    }
    if (workspace_bytes_ > 0) aisp::check(cudaMalloc(&workspace_, workspace_bytes_));
    chosen_ = fastest(stream, algorithms, [&](std::size_t i) { convolve(i, stream, in, weights, out); });
    if (!chosen_) throw Unsupported{"cuDNN runs none of its algorithms for a depthwise convolution in fp32"};
  }
  void run(cudaStream_t stream, const float* in, const float* weights, float* out) {
    convolve(chosen_.value(), stream, in, weights, out);
  }

 private:
  static constexpr int f32 = 0, nchw = 0, cross_correlation = 1, fma_math = 3, algorithms = 8;
  static constexpr std::size_t most_workspace_bytes = std::size_t{1} << 30, refused = static_cast<std::size_t>(-1);
  using Forward = int(void*, const void*, void*, const void*, void*, const void*, void*, int, void*, std::size_t, const void*,
                      void*, void*);

  void convolve(std::size_t algorithm, cudaStream_t stream, const float* in, const float* weights, float* out) {
    if (bytes_.at(algorithm) > most_workspace_bytes) throw Unsupported{"the algorithm is refused, or wants too much workspace"};
    const float one = 1, zero = 0;
    cudnn::check(set_stream_(handle_, stream), "cudnnSetStream");
    cudnn::check(forward_(handle_, &one, images_, in, filter_, weights, convolution_, static_cast<int>(algorithm), workspace_,
                          workspace_bytes_, &zero, images_, out),
                 "cudnnConvolutionForward");
  }

  void *handle_ = nullptr, *images_ = nullptr, *filter_ = nullptr, *convolution_ = nullptr, *workspace_ = nullptr;
  std::array<std::size_t, algorithms> bytes_{};  // of workspace
  std::size_t workspace_bytes_ = 0;
  std::optional<std::size_t> chosen_;
  int (*set_stream_)(void*, cudaStream_t) = cudnn::function<int(void*, cudaStream_t)>("cudnnSetStream");
  Forward* forward_ = cudnn::function<Forward>("cudnnConvolutionForward");
};

}  // namespace aisp::ch08
