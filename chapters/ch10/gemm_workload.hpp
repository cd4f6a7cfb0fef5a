// SPDX-License-Identifier: Apache-2.0
// The workload of this chapter's GEMM pairs: C[m][n] = A[m][k] B[k][n], row-major, bf16 with fp32 sums, random operands; and
// cuBLAS and CUTLASS as its libraries.
#pragma once
#include <aisp/libraries/cublas.hpp>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/libraries/cutlass.hpp>
#include <aisp/pair.hpp>

#include <cuda_bf16.h>

#include <memory>
#include <string_view>
#include <vector>

namespace aisp::ch10 {

// For .sizes and .sweep of a pair that measures more than one shape: squares, and two projections of a batch of 4096 tokens, up
// to the 14336 columns of Llama 3 8B's MLP and down from the 28672 of 70B's.
inline constexpr Sizes gemm_sizes = sizes({{.name = "m", .full = 8192, .multiple = 256},
                                           {.name = "n", .full = 8192, .multiple = 256},
                                           {.name = "k", .full = 8192, .multiple = 256}});
inline constexpr Cases gemm_cases = cases({{"square_4096", "m=4096,n=4096,k=4096"},
                                           {"square_8192", "m=8192,n=8192,k=8192"},
                                           {"llama3_8b_up", "m=4096,n=14336,k=4096"},
                                           {"llama3_70b_down", "m=4096,n=8192,k=28672"}});

class GemmWorkload : public Workload {
 public:
  using bf16 = __nv_bfloat16;

  // Full sizes, which the scale of the run shrinks in proportion (all three by its cube root would keep the shape, but not the
  // tiles): m and n by `multiple` at least.
  GemmWorkload(Setup& setup, std::size_t m, std::size_t n, std::size_t k, Pattern b_values = uniform(-1, 1))
      : GemmWorkload{setup, Shape{setup.scaled(m, 256), setup.scaled(n, 256), setup.scaled(k, 256)}, b_values} {}
  // Makes the workload of a pair with gemm_sizes.
  explicit GemmWorkload(Setup& setup)
      : GemmWorkload{setup, Shape{setup.size("m"), setup.size("n"), setup.size("k")}, uniform(-1, 1)} {}

  Cost cost() const override {
    return {.flops = 2.0 * static_cast<double>(m_) * static_cast<double>(n_) * static_cast<double>(k_),
            .math = Math::bf16,
            .bytes = static_cast<double>(a_.bytes() + b_.bytes() + c_.bytes())};
  }
  double expected(std::size_t index) const override {
    const std::size_t row = index / n_, column = index % n_;
    double sum = 0;
    for (std::size_t k = 0; k < k_; ++k) sum += a_.host(row * k_ + k) * b_.host(k * n_ + column);
    return sum;
  }

  void cublas(Launch& launch) { cublas_->gemm(launch.stream, m_, n_, k_, a_, b_, c_, CUDA_R_16BF); }
  void tune_cublaslt(Launch& launch) { cublaslt_.tune(launch, a_, b_, c_); }
  void cublaslt_tuned(Launch& launch) { cublaslt_.run_tuned(launch, a_, b_, c_); }
  void plan_cutlass(Launch&) {
    if (!cutlass_)
      cutlass_ =
          plan_cutlass_bf16({static_cast<int>(m_), static_cast<int>(n_), static_cast<int>(k_), a_.get(), b_.get(), c_.get()});
  }
  void cutlass(Launch& launch) { cutlass_->run(launch.stream); }

 protected:
  dim3 tiles(std::size_t tile_m, std::size_t tile_n) const {
    return {static_cast<unsigned>(n_ / tile_n), static_cast<unsigned>(m_ / tile_m)};
  }

  std::size_t m_, n_, k_;
  Input<bf16> a_, b_;
  Output<bf16> c_;

 private:
  struct Shape {
    std::size_t m, n, k;
  };
  GemmWorkload(Setup& setup, Shape shape, Pattern b_values)
      : m_{shape.m},
        n_{shape.n},
        k_{shape.k},
        a_{setup.input<bf16>(m_ * k_, uniform(-1, 1), {.name = "a"})},
        b_{setup.input<bf16>(k_ * n_, b_values, {.name = "b"})},
        c_{setup.output<bf16>(m_ * n_, {.name = "c"})},
        cublas_{setup},
        cublaslt_{setup, {.m = m_, .n = n_, .k = k_}} {}

  Opened<Cublas> cublas_;
  LibraryMatmul cublaslt_;
  std::unique_ptr<CutlassPlan> cutlass_;
};

inline constexpr Variant cublas_variant{
    .name = "cublas", .run = call<&GemmWorkload::cublas>, .needs = {.libraries = {Library::cublas}}};
// The fastest of the algorithms that the library proposes, instead of its first.
inline constexpr Variant tuned_variant{.name = "cublaslt_tuned",
                                       .run = call<&GemmWorkload::cublaslt_tuned>,
                                       .prepare = call<&GemmWorkload::tune_cublaslt>,
                                       .needs = {.libraries = {Library::cublaslt}}};
inline constexpr Variants cublas_library = variants({cublas_variant, tuned_variant});
// CUTLASS's kernel is one kind for all shapes, persistent too: beside the pair whose subject that is.
inline constexpr Variants persistent_libraries =
    variants({cublas_variant,
              tuned_variant,
              {.name = "cutlass",
               .run = call<&GemmWorkload::cutlass>,
               .prepare = call<&GemmWorkload::plan_cutlass>,
               .needs = {.min_sm = 90, .max_sm = 90, .libraries = {Library::cutlass}}}});

}  // namespace aisp::ch10
