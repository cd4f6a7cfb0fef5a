// SPDX-License-Identifier: Apache-2.0
// One matrix product of cuBLASLt for any of its compute types. C = A B, all n x n, with A and C row-major and B transposed
// (its columns are contiguous): the layout that every tensor core type takes.
#pragma once
#include <cublasLt.h>
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <cmath>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace aisp::ch02 {

struct GemmTypes {
  cudaDataType_t operands, result;
  cublasComputeType_t compute;
};

class TypedGemm {
 public:
  TypedGemm(const GemmTypes& types, std::uint64_t n) : integers_{types.compute == CUBLAS_COMPUTE_32I} {
    cublasLtHandle_t handle = nullptr;
    check(function<decltype(cublasLtCreate)>("cublasLtCreate")(&handle));
    handle_ = own(handle, "cublasLtDestroy");
    void* workspace = nullptr;
    check(cudaMalloc(&workspace, workspace_bytes));
    workspace_.reset(workspace);
    cublasLtMatmulDesc_t product = nullptr;
    check(function<decltype(cublasLtMatmulDescCreate)>("cublasLtMatmulDescCreate")(&product, types.compute,
                                                                                   integers_ ? CUDA_R_32I : CUDA_R_32F));
    product_ = own(product, "cublasLtMatmulDescDestroy");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check(function<decltype(cublasLtMatmulDescSetAttribute)>("cublasLtMatmulDescSetAttribute")(
        product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
    operand_ = layout(types.operands, n);
    result_ = layout(types.result, n);
    choose_algorithm();
  }
  TypedGemm(const TypedGemm&) = delete;
  TypedGemm& operator=(const TypedGemm&) = delete;

  // The library is column-major: to it, row-major C is C^T = (B^T)^T^T A^T, and both operands have their k contiguous.
  void run(cudaStream_t stream, const void* a, const void* b_transposed, void* c) const {
    const float one = 1, zero = 0;
    const std::int32_t integer_one = 1, integer_zero = 0;
    const void* const alpha = integers_ ? static_cast<const void*>(&integer_one) : &one;
    const void* const beta = integers_ ? static_cast<const void*>(&integer_zero) : &zero;
    check(multiply_(handle_.get(), product_.get(), alpha, b_transposed, operand_.get(), a, operand_.get(), beta, c, result_.get(),
                    c, result_.get(), &algorithm_.algo, workspace_.get(), workspace_bytes, stream));
  }

 private:
  template <class F>
  static F* function(const char* name) {
    return SharedLibrary::open(Library::cublaslt).function<F>(name);
  }

  // The library's objects, destroyed by its own calls: also where a later step of the constructor throws.
  template <class Handle>
  using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, cublasStatus_t (*)(Handle)>;
  template <class Handle>
  static Owned<Handle> own(Handle handle, const char* destroy) {
    return {handle, function<cublasStatus_t(Handle)>(destroy)};
  }
  static Owned<cublasLtMatrixLayout_t> layout(cudaDataType_t type, std::uint64_t n) {
    cublasLtMatrixLayout_t handle = nullptr;
    check(function<decltype(cublasLtMatrixLayoutCreate)>("cublasLtMatrixLayoutCreate")(&handle, type, n, n,
                                                                                       static_cast<std::int64_t>(n)));
    return own(handle, "cublasLtMatrixLayoutDestroy");
  }
  struct CudaFree {
    void operator()(void* memory) const { cudaFree(memory); }
  };

  void choose_algorithm() {
    cublasLtMatmulPreference_t preference = nullptr;
    check(function<decltype(cublasLtMatmulPreferenceCreate)>("cublasLtMatmulPreferenceCreate")(&preference));
    const auto owner = own(preference, "cublasLtMatmulPreferenceDestroy");
    check(function<decltype(cublasLtMatmulPreferenceSetAttribute)>("cublasLtMatmulPreferenceSetAttribute")(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes, sizeof workspace_bytes));
    int found = 0;
    const cublasStatus_t status = function<decltype(cublasLtMatmulAlgoGetHeuristic)>("cublasLtMatmulAlgoGetHeuristic")(
        handle_.get(), product_.get(), operand_.get(), operand_.get(), result_.get(), result_.get(), preference, 1, &algorithm_,
        &found);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || found == 0) throw Unsupported{"cuBLASLt has no algorithm for this type here"};
    check(status);
  }

  static constexpr std::size_t workspace_bytes = std::size_t{32} << 20;
  bool integers_;
  Owned<cublasLtHandle_t> handle_{nullptr, nullptr};
  std::unique_ptr<void, CudaFree> workspace_;
  Owned<cublasLtMatmulDesc_t> product_{nullptr, nullptr};
  Owned<cublasLtMatrixLayout_t> operand_{nullptr, nullptr}, result_{nullptr, nullptr};
  cublasLtMatmulHeuristicResult_t algorithm_{};
  decltype(&cublasLtMatmul) multiply_ = function<decltype(cublasLtMatmul)>("cublasLtMatmul");
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
  TypedProduct(Setup& setup, int n, GemmTypes types) : n_{n}, types_{types}, a_{scratch(setup)}, b_transposed_{scratch(setup)} {}

  void prepare(Launch& launch, const double* a, const double* b) {
    if (!gemm_) gemm_ = std::make_unique<TypedGemm>(types_, static_cast<std::uint64_t>(n_));
    const auto blocks = static_cast<unsigned>(a_.size() / rounding_threads);
    round_kernel<<<blocks, rounding_threads, 0, launch.stream>>>(a, b, a_.get(), b_transposed_.get(), n_);
    check(cudaGetLastError());
  }
  void run(Launch& launch, void* c) const { gemm_->run(launch.stream, a_, b_transposed_, c); }
  double bytes() const { return static_cast<double>(2 * a_.bytes() + a_.size() * 4); }  // results have 4 bytes

 private:
  Scratch<T> scratch(Setup& setup) const { return setup.scratch<T>(static_cast<std::size_t>(n_) * n_); }
  int n_;
  GemmTypes types_;
  Scratch<T> a_, b_transposed_;
  std::unique_ptr<TypedGemm> gemm_;
};

}  // namespace aisp::ch02
