// SPDX-License-Identifier: Apache-2.0
// A square product of cuBLASLt in any of its compute types, on operands rounded from fp64. C = A B, all n x n, with A and C
// row-major and B transposed (its columns are contiguous): the layout that every tensor core type takes.
#pragma once
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <cmath>
#include <cstdint>
#include <type_traits>

namespace aisp::ch02 {

struct GemmTypes {
  cudaDataType_t operands, result;
  cublasComputeType_t compute;
};

inline constexpr int rounding_threads = 256;

template <class T>
AISP_HOST_DEVICE T rounded(double value) {
  if constexpr (std::is_integral_v<T>) return static_cast<T>(rint(value));
  else return T(static_cast<float>(value));
}

template <class T>
__global__ void round_kernel(const double* a, const double* b, T* rounded_a, T* rounded_b_transposed, int n) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * rounding_threads + threadIdx.x;  // n * n is a multiple of them
  rounded_a[i] = rounded<T>(a[i]);
  rounded_b_transposed[i] = rounded<T>(b[i % n * n + i / n]);
}

// The product in another compute type: rounded operands, and the library's own kernel for them.
template <class T>
class TypedProduct {
 public:
  TypedProduct(Setup& setup, int n, GemmTypes types)
      : n_{n},
        a_{scratch(setup)},
        b_transposed_{scratch(setup)},
        lt_{setup},
        plan_{setup, lt_,
              MatmulProblem{.m = size(),
                            .n = size(),
                            .k = size(),
                            .operands = types.operands,
                            .result = types.result,
                            .compute = types.compute,
                            .b_is_transposed = true}} {}

  void prepare(Launch& launch, const double* a, const double* b) {
    launch(round_kernel<T>, {static_cast<unsigned>(a_.size() / rounding_threads), rounding_threads}, a, b, a_.get(),
           b_transposed_.get(), n_);
  }
  void run(Launch& launch, void* c) const { plan_->run(launch.stream, a_, b_transposed_, c); }
  double bytes() const { return static_cast<double>(2 * a_.bytes() + a_.size() * 4); }  // results have 4 bytes

 private:
  std::size_t size() const { return static_cast<std::size_t>(n_); }
  Scratch<T> scratch(Setup& setup) const { return setup.scratch<T>(size() * size()); }
  int n_;
  Scratch<T> a_, b_transposed_;
  Opened<CublasLt> lt_;
  Opened<MatmulPlan> plan_;
};

}  // namespace aisp::ch02
