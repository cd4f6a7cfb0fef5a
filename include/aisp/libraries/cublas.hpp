// SPDX-License-Identifier: Apache-2.0
// cuBLAS, opened at run time: nothing of it is linked. A variant that uses it says `.needs = {.libraries = {Library::cublas}}`.
#pragma once
#include <cublas_v2.h>
#include <aisp/check.hpp>
#include <aisp/library.hpp>
#include <aisp/opened.hpp>

#include <concepts>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>

namespace aisp {

inline void check(cublasStatus_t status, const std::source_location& where = std::source_location::current()) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error{"cuBLAS status " + std::to_string(status) + " at line " + std::to_string(where.line()) + " of " +
                             where.file_name()};
}

// A handle with a workspace of its own, so that no call allocates and results do not depend on the stream. Matrices are
// column-major, as cuBLAS has them: C = A B in row-major order is C^T = B^T A^T, that is gemm(n, m, k, B, A).
class Cublas {
 public:
  static constexpr Library library = Library::cublas;

  explicit Cublas(cublasMath_t mode = CUBLAS_DEFAULT_MATH) {
    check(create_(&handle_));
    check(set_math_mode_(handle_, mode));
    check(cudaMalloc(&workspace_, workspace_bytes));
  }
  ~Cublas() {
    destroy_(handle_);
    cudaFree(workspace_);
  }
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;

  cublasHandle_t handle() const { return handle_; }
  // Setting a stream resets the workspace, so both are set together. Calls that may run at the same time, on several streams,
  // need a workspace each: one of the caller's own.
  void use(cudaStream_t stream) { use(stream, {static_cast<std::byte*>(workspace_), workspace_bytes}); }
  void use(cudaStream_t stream, std::span<std::byte> workspace) {
    check(set_stream_(handle_, stream));
    check(set_workspace_(handle_, workspace.data(), workspace.size()));
  }

  // Row-major C[rows][columns] = A[rows][depth] B[depth][columns] with fp32 accumulation; all three of `type`.
  void gemm(cudaStream_t stream, std::integral auto rows, std::integral auto columns, std::integral auto depth, const void* a,
            const void* b, void* c, cudaDataType_t type, cublasComputeType_t compute = CUBLAS_COMPUTE_32F) {
    const float one = 1, zero = 0;
    const int m = static_cast<int>(rows), n = static_cast<int>(columns), k = static_cast<int>(depth);
    use(stream);
    check(gemm_ex_(handle_, CUBLAS_OP_N, CUBLAS_OP_N, n, m, k, &one, b, type, n, a, type, k, &zero, c, type, n, compute,
                   CUBLAS_GEMM_DEFAULT));
  }

  // The library's own calls, by name: function<decltype(cublasSgemm_v2)>("cublasSgemm_v2").
  template <class F>
  static F* function(const char* name) {
    return SharedLibrary::open(Library::cublas).function<F>(name);
  }
  // The type of cublasGemmEx, spelled out because the header overloads the name.
  using GemmEx = cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void*, const void*,
                                cudaDataType_t, int, const void*, cudaDataType_t, int, const void*, void*, cudaDataType_t, int,
                                cublasComputeType_t, cublasGemmAlgo_t);

 private:
  static constexpr std::size_t workspace_bytes = std::size_t{32} << 20;
  cublasHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  decltype(&cublasCreate_v2) create_ = function<decltype(cublasCreate_v2)>("cublasCreate_v2");
  decltype(&cublasDestroy_v2) destroy_ = function<decltype(cublasDestroy_v2)>("cublasDestroy_v2");
  decltype(&cublasSetStream_v2) set_stream_ = function<decltype(cublasSetStream_v2)>("cublasSetStream_v2");
  decltype(&cublasSetWorkspace_v2) set_workspace_ = function<decltype(cublasSetWorkspace_v2)>("cublasSetWorkspace_v2");
  decltype(&cublasSetMathMode) set_math_mode_ = function<decltype(cublasSetMathMode)>("cublasSetMathMode");
  GemmEx* gemm_ex_ = function<GemmEx>("cublasGemmEx");
};

}  // namespace aisp
