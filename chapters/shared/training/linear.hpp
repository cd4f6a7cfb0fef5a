// SPDX-License-Identifier: Apache-2.0
// The three products of a linear layer, forward and backward, by cuBLASLt: a plan for each.
#pragma once
#include <aisp/libraries/cublaslt.hpp>

#include <cstddef>

namespace aisp::training {

struct LinearShape {
  std::size_t rows, in, out;
};
struct LinearTypes {
  cudaDataType_t operands = CUDA_R_16BF;
  cudaDataType_t activations = CUDA_R_16BF;     // of y and dx
  cudaDataType_t weight_gradient = CUDA_R_32F;  // so that several batches can be added up
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
};

inline constexpr LinearTypes bf16_gradients{.weight_gradient = CUDA_R_16BF};

// y[rows][out] = x[rows][in] W^T with W[out][in], dx = dy W, and dw[out][in] = dy^T x.
class Linear {
 public:
  Linear(Setup& setup, const Opened<CublasLt>& lt, const LinearShape& of, const LinearTypes& types = {})
      : y_{setup, lt, problem(of.rows, of.out, of.in, types, types.activations, false, true)},
        dx_{setup, lt, problem(of.rows, of.in, of.out, types, types.activations, false, false)},
        dw_{setup, lt, problem(of.out, of.in, of.rows, types, types.weight_gradient, true, false)} {}

  void forward(cudaStream_t stream, const void* x, const void* w, void* y, float beta = 0) const {
    y_->run(stream, x, w, y, 1, beta);
  }
  void input_gradient(cudaStream_t stream, const void* dy, const void* w, void* dx, float alpha = 1, float beta = 0) const {
    dx_->run(stream, dy, w, dx, alpha, beta);
  }
  void weight_gradient(cudaStream_t stream, const void* dy, const void* x, void* dw, float alpha = 1, float beta = 0) const {
    dw_->run(stream, dy, x, dw, alpha, beta);
  }

  // Takes the fastest algorithm of each product; belongs into `prepare`. Results are overwritten.
  void tune(cudaStream_t stream, const void* x, const void* w, const void* dy, void* y, void* dx, void* dw) const {
    y_->tune(stream, x, w, y);
    dx_->tune(stream, dy, w, dx);
    dw_->tune(stream, dy, x, dw);
  }

 private:
  static MatmulProblem problem(std::size_t m, std::size_t n, std::size_t k, const LinearTypes& types, cudaDataType_t result,
                               bool a_is_transposed, bool b_is_transposed) {
    return {.m = m,
            .n = n,
            .k = k,
            .operands = types.operands,
            .result = result,
            .compute = types.compute,
            .a_is_transposed = a_is_transposed,
            .b_is_transposed = b_is_transposed};
  }

  Opened<MatmulPlan> y_, dx_, dw_;
};

}  // namespace aisp::training
