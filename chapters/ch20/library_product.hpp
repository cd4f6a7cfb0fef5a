// SPDX-License-Identifier: Apache-2.0
// Y = X W^T for a few rows X in bf16 by cuBLASLt, or for one row by cuBLAS, whichever of their routines is fastest.
#pragma once
#include <cuda_bf16.h>
#include <aisp/libraries/cublas.hpp>
#include <aisp/libraries/cublaslt.hpp>

#include <optional>

namespace aisp::ch20 {

struct ProductSizes {
  int rows, outputs, inputs;
  int pitch = 0;  // elements from one row of Y to the next; 0: outputs
};

// Y is bf16 or fp32.
template <class Out>
class LibraryProduct {
  using bf16 = __nv_bfloat16;
  static constexpr bool is_wide = sizeof(Out) == 4;

 public:
  LibraryProduct(Setup& setup, const Opened<Cublas>& cublas, const ProductSizes& sizes)
      : sizes_{sizes},
        cublas_{cublas},
        lt_{setup},
        plan_{setup, lt_,
              MatmulProblem{.m = static_cast<std::size_t>(sizes.rows),
                            .n = static_cast<std::size_t>(sizes.outputs),
                            .k = static_cast<std::size_t>(sizes.inputs),
                            .result = is_wide ? CUDA_R_32F : CUDA_R_16BF,
                            .b_is_transposed = true,
                            .c_pitch = static_cast<std::size_t>(sizes.pitch)}} {}

  // Once: with matrices that lie `stride` elements apart in turn, so that none is in a cache. Y is overwritten.
  void choose(cudaStream_t stream, const bf16* weights, std::size_t matrices, std::size_t stride, const bf16* x, Out* y) {
    if (way_) return;
    std::size_t turn = 0;
    const auto next = [&] {
      turn = (turn + 1) % matrices;
      return weights + turn * stride;
    };
    plan_->tune(stream, [&](auto one_product) { one_product(x, next(), y); });
    way_ = sizes_.rows > 1 ? 0 : fastest(stream, ways, [&](std::size_t way) { run(stream, way, next(), x, y); });
    if (!way_) throw Unsupported{"neither cuBLAS nor cuBLASLt multiplies this matrix by a vector"};
  }
  void run(cudaStream_t stream, const bf16* weights, const bf16* x, Out* y) const { run(stream, *way_, weights, x, y); }
  const ProductSizes& sizes() const { return sizes_; }

 private:
  static constexpr std::size_t ways = 3;

  void run(cudaStream_t stream, std::size_t way, const bf16* weights, const bf16* x, Out* y) const {
    if (way == 0) {
      plan_->run(stream, x, weights, y);
      return;
    }
    const int m = sizes_.outputs, k = sizes_.inputs;
    const float one = 1, zero = 0;
    cublas_->use(stream);
    if (way == 1) {
      check(Cublas::function<Cublas::GemmEx>("cublasGemmEx")(
          cublas_->handle(), CUBLAS_OP_T, CUBLAS_OP_N, m, 1, k, &one, weights, CUDA_R_16BF, k, x, CUDA_R_16BF, k, &zero, y,
          is_wide ? CUDA_R_32F : CUDA_R_16BF, m, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    } else if constexpr (is_wide) {
      check(Cublas::function<decltype(cublasTSSgemvStridedBatched)>("cublasTSSgemvStridedBatched")(
          cublas_->handle(), CUBLAS_OP_T, k, m, &one, weights, k, 0, x, 1, k, &zero, y, 1, m, 1));
    } else {
      check(Cublas::function<decltype(cublasTSTgemvStridedBatched)>("cublasTSTgemvStridedBatched")(
          cublas_->handle(), CUBLAS_OP_T, k, m, &one, weights, k, 0, x, 1, k, &zero, y, 1, m, 1));
    }
  }

  ProductSizes sizes_;
  Opened<Cublas> cublas_;
  Opened<CublasLt> lt_;
  Opened<MatmulPlan> plan_;
  std::optional<std::size_t> way_;
};

}  // namespace aisp::ch20
