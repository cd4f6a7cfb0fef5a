// SPDX-License-Identifier: Apache-2.0
// The products of fp8_training_step by cuBLASLt, in FP8 and in bf16, and by the engine, and the tensors that they take.
#pragma once
#include <aisp/libraries/cublaslt.hpp>

#include <cstdint>

#include "fp8_step_reference.hpp"
#include "gemm/gemm.hpp"

namespace aisp::ch19 {

// A tensor in FP8: along rows, [rows][columns], and along columns, [columns][pitch].
struct Codes {
  Codes(Setup& setup, std::size_t rows_of, std::size_t columns_of, std::size_t pitch)
      : rows{rows_of},
        columns{columns_of},
        along_rows{setup.scratch<std::uint8_t>(rows_of * columns_of)},
        along_columns{setup.scratch<std::uint8_t>(columns_of * pitch)} {}
  std::size_t rows, columns;
  Scratch<std::uint8_t> along_rows, along_columns;
};

// Codes of a micro-batch, and of the weights; along columns there is room for all tokens.
struct StepCodes {
  StepCodes(Setup& setup, const StepShape& s)
      : x{setup, s.rows(), s.depth, s.tokens},
        a{setup, s.rows(), s.width, s.tokens},
        dy{setup, s.rows(), s.depth, s.tokens},
        dh{setup, s.rows(), 2 * s.width, s.tokens},
        w1{setup, 2 * s.width, s.depth, 2 * s.width},
        w2{setup, s.depth, s.width, s.depth} {}
  Codes x, a, dy, dh, w1, w2;
};

// The destinations of products, of a micro-batch except for the gradients of weights.
struct StepTargets {
  bf16 *h, *y, *da, *dx;
  float *dw1, *dw2;
};

// From one tensor's scale to the next: the library wants them aligned to 16 bytes.
inline constexpr std::size_t scale_stride = 4;

// Gradients of weights sum over `summed` tokens. `inverses` are the scales of the tensors.
class Fp8Products {
 public:
  Fp8Products(Setup& setup, const Opened<CublasLt>& lt, const StepShape& s, std::size_t summed, const float* inverses)
      : h_{setup, lt, problem(s.rows(), 2 * s.width, s.depth, inverses, of_x, of_w1)},
        y_{setup, lt, problem(s.rows(), s.depth, s.width, inverses, of_a, of_w2)},
        da_{setup, lt, problem(s.rows(), s.width, s.depth, inverses, of_dy, of_w2)},
        dx_{setup, lt, problem(s.rows(), s.depth, 2 * s.width, inverses, of_dh, of_w1)},
        dw2_{setup, lt, problem(s.depth, s.width, summed, inverses, of_dy, of_a)},
        dw1_{setup, lt, problem(2 * s.width, s.depth, summed, inverses, of_dh, of_x)} {}

  void h(cudaStream_t stream, const StepCodes& of, const StepTargets& to) const {
    h_->run(stream, of.x.along_rows, of.w1.along_rows, to.h);
  }
  void y(cudaStream_t stream, const StepCodes& of, const StepTargets& to) const {
    y_->run(stream, of.a.along_rows, of.w2.along_rows, to.y);
  }
  void da(cudaStream_t stream, const StepCodes& of, const StepTargets& to) const {
    da_->run(stream, of.dy.along_rows, of.w2.along_columns, to.da);
  }
  void dx(cudaStream_t stream, const StepCodes& of, const StepTargets& to) const {
    dx_->run(stream, of.dh.along_rows, of.w1.along_columns, to.dx);
  }
  void add_gradients(cudaStream_t stream, const StepCodes& of, const StepTargets& to) const {
    dw2_->run(stream, of.dy.along_columns, of.a.along_columns, to.dw2, 1, 1);
    dw1_->run(stream, of.dh.along_columns, of.x.along_columns, to.dw1, 1, 1);
  }

  void tune_gradients(cudaStream_t stream, const StepCodes& of, const StepTargets& to) const {
    dw2_->tune(stream, of.dy.along_columns, of.a.along_columns, to.dw2, 1);
    dw1_->tune(stream, of.dh.along_columns, of.x.along_columns, to.dw1, 1);
  }
  void tune(cudaStream_t stream, const StepCodes& of, const StepTargets& to) const {
    h_->tune(stream, of.x.along_rows, of.w1.along_rows, to.h);
    y_->tune(stream, of.a.along_rows, of.w2.along_rows, to.y);
    da_->tune(stream, of.dy.along_rows, of.w2.along_columns, to.da);
    dx_->tune(stream, of.dh.along_rows, of.w1.along_columns, to.dx);
    tune_gradients(stream, of, to);
  }

 private:
  // Forward products keep their sums in the tensor cores, backward ones do not, as Transformer Engine has it by default.
  static MatmulProblem problem(std::size_t m, std::size_t n, std::size_t k, const float* inverses, StepTensor a, StepTensor b) {
    const bool backward = a == of_dy || a == of_dh, of_weights = b == of_a || b == of_x;
    return {.m = m,
            .n = n,
            .k = k,
            .operands = backward ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3,
            .result = of_weights ? CUDA_R_32F : CUDA_R_16BF,
            .b_is_transposed = true,
            .fast_accumulation = !backward,
            .b_operands = CUDA_R_8F_E4M3,
            .a_scale = inverses + scale_stride * a,
            .b_scale = inverses + scale_stride * b};
  }

  Opened<MatmulPlan> h_, y_, da_, dx_, dw2_, dw1_;
};

// The same without casts. They take operands in any order.
struct Bf16Operands {
  const bf16 *x, *dy, *w1, *w2, *a, *dh;
};
class Bf16Products {
 public:
  Bf16Products(Setup& setup, const Opened<CublasLt>& lt, const StepShape& s)
      : h_{setup, lt, MatmulProblem{.m = s.rows(), .n = 2 * s.width, .k = s.depth, .b_is_transposed = true}},
        y_{setup, lt, MatmulProblem{.m = s.rows(), .n = s.depth, .k = s.width, .b_is_transposed = true}},
        da_{setup, lt, MatmulProblem{.m = s.rows(), .n = s.width, .k = s.depth}},
        dx_{setup, lt, MatmulProblem{.m = s.rows(), .n = s.depth, .k = 2 * s.width}},
        dw2_{setup, lt, gradient(s.depth, s.width, s.rows())},
        dw1_{setup, lt, gradient(2 * s.width, s.depth, s.rows())} {}

  void h(cudaStream_t stream, const Bf16Operands& of, const StepTargets& to) const { h_->run(stream, of.x, of.w1, to.h); }
  void y(cudaStream_t stream, const Bf16Operands& of, const StepTargets& to) const { y_->run(stream, of.a, of.w2, to.y); }
  void da(cudaStream_t stream, const Bf16Operands& of, const StepTargets& to) const { da_->run(stream, of.dy, of.w2, to.da); }
  void dx(cudaStream_t stream, const Bf16Operands& of, const StepTargets& to) const { dx_->run(stream, of.dh, of.w1, to.dx); }
  void add_gradients(cudaStream_t stream, const Bf16Operands& of, const StepTargets& to) const {
    dw2_->run(stream, of.dy, of.a, to.dw2, 1, 1);
    dw1_->run(stream, of.dh, of.x, to.dw1, 1, 1);
  }
  void tune(cudaStream_t stream, const Bf16Operands& of, const StepTargets& to) const {
    h_->tune(stream, of.x, of.w1, to.h);
    y_->tune(stream, of.a, of.w2, to.y);
    da_->tune(stream, of.dy, of.w2, to.da);
    dx_->tune(stream, of.dh, of.w1, to.dx);
    dw2_->tune(stream, of.dy, of.a, to.dw2, 1);
    dw1_->tune(stream, of.dh, of.x, to.dw1, 1);
  }

 private:
  static MatmulProblem gradient(std::size_t m, std::size_t n, std::size_t k) {
    return {.m = m, .n = n, .k = k, .result = CUDA_R_32F, .a_is_transposed = true};
  }

  Opened<MatmulPlan> h_, y_, da_, dx_, dw2_, dw1_;
};

// Gradients of weights by the engine: added to memory by TMA, where the library's kernel loads what is there and stores the sum.
struct Descaled {
  static constexpr int narrowing = 1;
  const float *of_a = nullptr, *of_b = nullptr;
  template <int count>
  __device__ __forceinline__ void operator()(float (&sums)[count], const gemm::Fragment&) const {
    const float by = *of_a * *of_b;
#pragma unroll
    for (float& sum : sums) sum *= by;
  }
};
struct AddingTile : gemm::Config<gemm::Operand<e5m2>, gemm::Operand<e4m3>, gemm::Promoted,
                                 gemm::Shape{.stages = 6, .pingpong = true, .cluster = 2}> {};
using Adding = gemm::Gemm<AddingTile, gemm::Bands, Descaled, gemm::TmaStore<float, 2, true>>;

}  // namespace aisp::ch19
