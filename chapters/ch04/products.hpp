// SPDX-License-Identifier: Apache-2.0
// Products by cuBLAS on any of a pair's GPUs: a handle belongs to the GPU that is selected when it is made.
#pragma once
#include <cuda_bf16.h>
#include <aisp/libraries/cublas.hpp>
#include <aisp/peer.hpp>

#include <cstddef>

namespace aisp::ch04 {

// A handle of a library on the GPU of this ordinal.
template <class Handle>
class OnGpu : public Handle {
 public:
  explicit OnGpu(int ordinal) : OnGpu{SelectedGpu{ordinal}} {}

 private:
  explicit OnGpu(const SelectedGpu& /*for as long as the handle is being made*/) {}
};

// Row-major C[m][n] = A[m][k] B[k][n] + beta C, of bf16 operands with sums in fp32.
struct Product {
  std::size_t m, n, k;
  bool a_is_transposed = false;  // A is stored as [k][m]
  bool b_is_transposed = false;  // B is stored as [n][k]
  cudaDataType_t result = CUDA_R_16BF;
  float beta = 0;
};

// Queues the product; the handle's GPU is selected. The library is column-major, and computes C^T = B^T A^T.
inline void multiply(Cublas& cublas, cudaStream_t stream, const Product& p, const __nv_bfloat16* a, const __nv_bfloat16* b,
                     void* c) {
  static const auto gemm = Cublas::function<Cublas::GemmEx>("cublasGemmEx");
  const float one = 1;
  const auto m = static_cast<int>(p.m), n = static_cast<int>(p.n), k = static_cast<int>(p.k);
  cublas.use(stream);
  check(gemm(cublas.handle(), p.b_is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, p.a_is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, n, m,
             k, &one, b, CUDA_R_16BF, p.b_is_transposed ? k : n, a, CUDA_R_16BF, p.a_is_transposed ? m : k, &p.beta, c, p.result,
             n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

}  // namespace aisp::ch04
