// SPDX-License-Identifier: Apache-2.0
// y = W x for one row x in bf16 by cuBLAS or cuBLASLt, whichever of their routines is fastest.
#pragma once
#include <cuda_bf16.h>
#include <aisp/libraries/cublas.hpp>
#include <aisp/libraries/cublaslt.hpp>

#include <optional>

namespace aisp::ch20 {

// W has so many rows ([layers][outputs][inputs] all together) and y is bf16 or fp32.
template <class Out>
class LibraryGemv {
  using bf16 = __nv_bfloat16;
  static constexpr bool is_wide = sizeof(Out) == 4;

 public:
  LibraryGemv(Setup& setup, const Opened<Cublas>& cublas, int outputs, int inputs)
      : cublas_{cublas},
        lt_{setup},
        plan_{setup, lt_,
              MatmulProblem{.m = 1,
                            .n = static_cast<std::size_t>(outputs),
                            .k = static_cast<std::size_t>(inputs),
                            .result = is_wide ? CUDA_R_32F : CUDA_R_16BF,
                            .b_is_transposed = true}},
        outputs_{outputs},
        inputs_{inputs} {}

  // Once: of matrices that lie one after the other, so that none is in a cache. x and y are overwritten or read.
  void choose(cudaStream_t stream, const bf16* weights, std::size_t matrices, const bf16* x, Out* y) {
    if (way_) return;
    std::size_t turn = 0;
    const auto next = [&] {
      turn = (turn + 1) % matrices;
      return weights + turn * static_cast<std::size_t>(outputs_) * static_cast<std::size_t>(inputs_);
    };
    plan_->tune(stream, [&](auto one_product) { one_product(x, next(), y); });
    way_ = fastest(stream, ways, [&](std::size_t way) { run(stream, way, next(), x, y); });
    if (!way_) throw Unsupported{"neither cuBLAS nor cuBLASLt multiplies this matrix by a vector"};
  }
  void run(cudaStream_t stream, const bf16* weights, const bf16* x, Out* y) const { run(stream, *way_, weights, x, y); }

 private:
  static constexpr std::size_t ways = 3;

  void run(cudaStream_t stream, std::size_t way, const bf16* weights, const bf16* x, Out* y) const {
    if (way == 0) {
      plan_->run(stream, x, weights, y);
      return;
    }
    const float one = 1, zero = 0;
    cublas_->use(stream);
    if (way == 1) {
      check(Cublas::function<Cublas::GemmEx>("cublasGemmEx")(
          cublas_->handle(), CUBLAS_OP_T, CUBLAS_OP_N, outputs_, 1, inputs_, &one, weights, CUDA_R_16BF, inputs_, x, CUDA_R_16BF,
          inputs_, &zero, y, is_wide ? CUDA_R_32F : CUDA_R_16BF, outputs_, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    } else if constexpr (is_wide) {
      check(Cublas::function<decltype(cublasTSSgemvStridedBatched)>("cublasTSSgemvStridedBatched")(
          cublas_->handle(), CUBLAS_OP_T, inputs_, outputs_, &one, weights, inputs_, 0, x, 1, inputs_, &zero, y, 1, outputs_, 1));
    } else {
      check(Cublas::function<decltype(cublasTSTgemvStridedBatched)>("cublasTSTgemvStridedBatched")(
          cublas_->handle(), CUBLAS_OP_T, inputs_, outputs_, &one, weights, inputs_, 0, x, 1, inputs_, &zero, y, 1, outputs_, 1));
    }
  }

  Opened<Cublas> cublas_;
  Opened<CublasLt> lt_;
  Opened<MatmulPlan> plan_;
  int outputs_, inputs_;
  std::optional<std::size_t> way_;
};

}  // namespace aisp::ch20
