// SPDX-License-Identifier: Apache-2.0
// cuBLASLt, opened at run time: nothing of it is linked. A variant that uses it says `.needs = {.libraries =
// {Library::cublaslt}}`.
#pragma once
#include <cublasLt.h>
#include <aisp/libraries/cublas.hpp>

#include <memory>
#include <type_traits>

namespace aisp {

// A handle with a workspace for all products that follow one another in a stream.
class CublasLt {
 public:
  CublasLt() {
    check(create_(&handle_));
    check(cudaMalloc(&workspace_, workspace_bytes));
  }
  ~CublasLt() {
    destroy_(handle_);
    cudaFree(workspace_);
  }
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  cublasLtHandle_t handle() const { return handle_; }
  void* workspace() const { return workspace_; }
  static constexpr std::size_t workspace_bytes = std::size_t{32} << 20;

  // The library's own calls, by name: function<decltype(cublasLtMatmul)>("cublasLtMatmul").
  template <class F>
  static F* function(const char* name) {
    return SharedLibrary::open(Library::cublaslt).function<F>(name);
  }

 private:
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  decltype(&cublasLtCreate) create_ = function<decltype(cublasLtCreate)>("cublasLtCreate");
  decltype(&cublasLtDestroy) destroy_ = function<decltype(cublasLtDestroy)>("cublasLtDestroy");
};

// Row-major C[m][n] = A[m][k] B[k][n].
struct MatmulProblem {
  int m = 0, n = 0, k = 0;
  cudaDataType_t operands = CUDA_R_16BF, result = CUDA_R_16BF;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  bool b_is_transposed = false;  // B is stored as [n][k], as FP8 wants it
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;  // n values on the device, for epilogues with a bias
  // FP8 with a scale for every 128 elements along K, on the device: a_scales[k / 128][m], one for each row of A, and
  // b_scales[n / 128][k / 128], one for each 128 x 128 block of B. Both or neither; k is a multiple of 512.
  const float *a_scales = nullptr, *b_scales = nullptr;
};

// One product, planned once: the constructor describes the matrices and lets the library choose the algorithm, run() only
// launches it. Pointers are aligned to 256 bytes. The library object outlives its plans.
class MatmulPlan {
 public:
  MatmulPlan(const CublasLt& library, const MatmulProblem& problem) : library_{library} {
    describe(problem);
    choose(problem);
  }

  void run(cudaStream_t stream, const void* a, const void* b, void* c, float alpha = 1, float beta = 0) const {
    check(matmul_(library_.handle(), operation_.get(), &alpha, b, layout_b_.get(), a, layout_a_.get(), &beta, c, layout_c_.get(),
                  c, layout_c_.get(), &algorithm_, library_.workspace(), CublasLt::workspace_bytes, stream));
  }

 private:
  template <class Handle>
  using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, cublasStatus_t (*)(Handle)>;
  using Layout = Owned<cublasLtMatrixLayout_t>;

  template <class Handle>
  static Owned<Handle> own(Handle handle, const char* destroy) {
    return {handle, CublasLt::function<cublasStatus_t(Handle)>(destroy)};
  }
  static Layout layout(cudaDataType_t type, int rows, int columns) {
    const auto create = CublasLt::function<decltype(cublasLtMatrixLayoutCreate)>("cublasLtMatrixLayoutCreate");
    cublasLtMatrixLayout_t handle = nullptr;
    check(create(&handle, type, static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns), rows));
    return own(handle, "cublasLtMatrixLayoutDestroy");
  }

  // The library is column-major and sees each row-major matrix transposed: it computes C^T = B^T A^T.
  void describe(const MatmulProblem& problem) {
    const auto create = CublasLt::function<decltype(cublasLtMatmulDescCreate)>("cublasLtMatmulDescCreate");
    cublasLtMatmulDesc_t handle = nullptr;
    check(create(&handle, problem.compute, CUDA_R_32F));
    operation_ = own(handle, "cublasLtMatmulDescDestroy");
    set(CUBLASLT_MATMUL_DESC_TRANSA, problem.b_is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, problem.epilogue);
    if (problem.bias != nullptr) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, problem.bias);
    if (problem.a_scales != nullptr) scale_blocks(problem);
    layout_a_ = layout(problem.operands, problem.k, problem.m);
    layout_b_ =
        problem.b_is_transposed ? layout(problem.operands, problem.k, problem.n) : layout(problem.operands, problem.n, problem.k);
    layout_c_ = layout(problem.result, problem.n, problem.m);
  }
  // cuBLASLt's A is our B, and the other way round.
  void scale_blocks(const MatmulProblem& problem) {
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, problem.b_scales);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, problem.a_scales);
  }
  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    const auto call = CublasLt::function<decltype(cublasLtMatmulDescSetAttribute)>("cublasLtMatmulDescSetAttribute");
    check(call(operation_.get(), attribute, &value, sizeof value));
  }

  void choose(const MatmulProblem& problem) {
    const auto create = CublasLt::function<decltype(cublasLtMatmulPreferenceCreate)>("cublasLtMatmulPreferenceCreate");
    const auto limit = CublasLt::function<decltype(cublasLtMatmulPreferenceSetAttribute)>("cublasLtMatmulPreferenceSetAttribute");
    const auto ask = CublasLt::function<decltype(cublasLtMatmulAlgoGetHeuristic)>("cublasLtMatmulAlgoGetHeuristic");
    cublasLtMatmulPreference_t handle = nullptr;
    check(create(&handle));
    const auto preference = own(handle, "cublasLtMatmulPreferenceDestroy");
    const std::size_t bytes = CublasLt::workspace_bytes;
    check(limit(handle, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
    cublasLtMatmulHeuristicResult_t best{};
    int found = 0;
    check(ask(library_.handle(), operation_.get(), layout_b_.get(), layout_a_.get(), layout_c_.get(), layout_c_.get(), handle, 1,
              &best, &found));
    if (found == 0)
      throw Unsupported{"cuBLASLt has no algorithm for this " + std::to_string(problem.m) + " x " + std::to_string(problem.n) +
                        " x " + std::to_string(problem.k) + " product"};
    algorithm_ = best.algo;
  }

  const CublasLt& library_;
  Owned<cublasLtMatmulDesc_t> operation_{nullptr, nullptr};
  Layout layout_a_{nullptr, nullptr}, layout_b_{nullptr, nullptr}, layout_c_{nullptr, nullptr};
  cublasLtMatmulAlgo_t algorithm_{};
  decltype(&cublasLtMatmul) matmul_ = CublasLt::function<decltype(cublasLtMatmul)>("cublasLtMatmul");
};

}  // namespace aisp
