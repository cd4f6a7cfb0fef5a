// SPDX-License-Identifier: Apache-2.0
// C[m][n] = A[m][k] B[n][k] of e4m3 with one scale for all, with and without fast accumulation: the pairs gemm_fp8_fast and
// gemm_fp8 differ in nothing else.
#pragma once
#include "product.hpp"

namespace aisp::gemm_engine {

// Four shapes of chapter 10's, and the short K of gemm_bf16.
inline constexpr Sizes fp8_sizes = sizes({{.name = "m", .full = 8192, .multiple = 16},
                                          {.name = "n", .full = 8192, .multiple = 16},
                                          {.name = "k", .full = 8192, .multiple = 16},
                                          candidate});
inline constexpr Cases fp8_cases = cases({{"square_4096", "m=4096,n=4096,k=4096"},
                                          {"square_8192", "m=8192,n=8192,k=8192"},
                                          {"llama3_8b_up", "m=4096,n=14336,k=4096"},
                                          {"llama3_70b_down", "m=4096,n=8192,k=28672"},
                                          {"short_k", "m=16384,n=4096,k=1024"}});
inline constexpr Cases fp8_edges = cases({{"least", "m=16,n=16,k=16"}, {"tails", "m=272,n=336,k=144"}});

class Fp8Product : public ProductWorkload {
 public:
  Cost cost() const override {
    return {.flops = 2.0 * static_cast<double>(m_) * static_cast<double>(n_) * static_cast<double>(k_),
            .math = Math::fp8,
            .bytes = static_cast<double>(a_.bytes() + b_.bytes() + c_.bytes())};
  }
  double expected(std::size_t i) const override {
    const std::size_t row = i / n_, column = i % n_;
    double sum = 0;
    for (std::size_t k = 0; k < k_; ++k) sum += a_.host(row * k_ + k) * b_.host(column * k_ + k);
    return sum * double{scale};
  }

 protected:
  Fp8Product(Setup& setup, bool fast)
      : ProductWorkload{setup},
        m_{setup.size("m")},
        n_{setup.size("n")},
        k_{setup.size("k")},
        // Up to the type's largest value, 448, as scales made from the largest element leave it.
        a_{setup.input<e4m3>(m_ * k_, normal(0, 90), {.name = "a"})},
        b_{setup.input<e4m3>(n_ * k_, normal(0, 90), {.name = "b"})},
        c_{setup.output<bf16>(m_ * n_, {.name = "c"})} {
    const MatmulProblem problem{
        .m = m_, .n = n_, .k = k_, .operands = CUDA_R_8F_E4M3, .b_is_transposed = true, .fast_accumulation = fast};
    compare_with(setup, problem, a_.get(), b_.get(), c_.get(), scale);
  }
  template <class C, class Store>
  void add_scaled() {
    add<C, Store>(gemm::Problem<e4m3, e4m3, bf16>{.a = a_, .b = b_, .c = c_, .m = m_, .n = n_, .k = k_}, gemm::Scaled{scale});
  }

 private:
  static constexpr float scale = 1.0f / 8192;

  std::size_t m_, n_, k_;
  Input<e4m3> a_, b_;
  Output<bf16> c_;
};

}  // namespace aisp::gemm_engine
