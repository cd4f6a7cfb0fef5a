// SPDX-License-Identifier: Apache-2.0
// cuDNN's softmax of rows of bf16, in the algorithm that subtracts the maximum. Names and numbers are those of cudnn_ops.h,
// version 9, as far as they are used.
#pragma once
#include <aisp/libraries/cudnn_backend.hpp>
#include <aisp/tolerance.hpp>

#include <cstddef>

namespace aisp::shared {

// Limits for each row by itself. cuDNN rounds to bf16 more than once on the way: four times 2^-9 where a row has one large
// element.
inline constexpr Tolerance cudnn_softmax_rows = within(8e-3);

class CudnnSoftmax {
 public:
  static constexpr Library library = Library::cudnn;

  CudnnSoftmax() { cudnn::check(cudnn::function<int(void**)>("cudnnCreate")(&handle_), "cudnnCreate"); }
  ~CudnnSoftmax() {
    if (rows_ != nullptr) cudnn::function<int(void*)>("cudnnDestroyTensorDescriptor")(rows_);
    cudnn::function<int(void*)>("cudnnDestroy")(handle_);
  }
  CudnnSoftmax(const CudnnSoftmax&) = delete;
  CudnnSoftmax& operator=(const CudnnSoftmax&) = delete;

  void run(cudaStream_t stream, std::size_t rows, std::size_t columns, const void* in, void* out) {
    constexpr int nchw = 0, accurate = 1, whole_row = 0;  // tensor format, softmax algorithm, softmax mode
    const float one = 1, zero = 0;
    if (rows_ == nullptr)
      cudnn::check(cudnn::function<int(void**)>("cudnnCreateTensorDescriptor")(&rows_), "cudnnCreateTensorDescriptor");
    cudnn::check(set_tensor_(rows_, nchw, cudnn::DataType::bf16, static_cast<int>(rows), static_cast<int>(columns), 1, 1),
                 "cudnnSetTensor4dDescriptor");
    cudnn::check(set_stream_(handle_, stream), "cudnnSetStream");
    cudnn::check(forward_(handle_, accurate, whole_row, &one, rows_, in, &zero, rows_, out), "cudnnSoftmaxForward");
  }

 private:
  using SetTensor = int(void*, int, cudnn::DataType, int, int, int, int);
  using Forward = int(void*, int, int, const float*, void*, const void*, const float*, void*, void*);
  void *handle_ = nullptr, *rows_ = nullptr;
  SetTensor* set_tensor_ = cudnn::function<SetTensor>("cudnnSetTensor4dDescriptor");
  int (*set_stream_)(void*, cudaStream_t) = cudnn::function<int(void*, cudaStream_t)>("cudnnSetStream");
  Forward* forward_ = cudnn::function<Forward>("cudnnSoftmaxForward");
};

}  // namespace aisp::shared
