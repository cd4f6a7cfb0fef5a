// SPDX-License-Identifier: Apache-2.0
// cuBLASLt, opened at run time: nothing of it is linked. A variant that uses it says `.needs = {.libraries =
// {Library::cublaslt}}`.
#pragma once
#include <cublasLt.h>
#include <aisp/front_end.hpp>
#include <aisp/launch.hpp>
#include <aisp/libraries/cublas.hpp>
#include <aisp/libraries/fastest.hpp>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace aisp {

// A handle with a workspace for all products that follow one another in a stream.
class CublasLt {
 public:
  static constexpr Library library = Library::cublaslt;

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
  std::size_t m = 0, n = 0, k = 0;
  cudaDataType_t operands = CUDA_R_16BF, result = CUDA_R_16BF;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;  // 64F: operands and result fp64; 32I: int8, with a result in int32 or int8
  bool a_is_transposed = false;                      // A is stored as [k][m]
  bool b_is_transposed = false;                      // B is stored as [n][k], as FP8 wants it
  std::size_t c_pitch = 0;                           // elements from one row of C to the next; 0: n, C is packed
  // FP8: sums never leave the tensor cores, which keep fewer bits of them. Without it they are added up in fp32 registers.
  bool fast_accumulation = false;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;  // n values on the device, for epilogues with a bias
  // For backward epilogues: [m][n] on the device, the activation's input, in the result's type; and n values for the gradient of
  // the bias, the result's sums along M.
  const void* before_activation = nullptr;
  void* bias_gradient = nullptr;
  // FP8 with a scale for every 128 elements along K, on the device: a_scales[k / 128][m], one for each row of A, and
  // b_scales[n / 128][k / 128], one for each 128 x 128 block of B. Both or neither; k is a multiple of 512.
  const float *a_scales = nullptr, *b_scales = nullptr;
  // FP8: the type of B if it is not A's; and one scale for all of A and one for all of B, on the device, aligned to 16 bytes.
  std::optional<cudaDataType_t> b_operands{};
  const float *a_scale = nullptr, *b_scale = nullptr;
  // FP8 with a scale for each row of A, [m], and one for each column of B, [n], on the device. Both or neither.
  const float *row_scales = nullptr, *column_scales = nullptr;
  // For a result in FP8, on the device: the factor of the result before it is rounded, and the destination of the largest
  // magnitude before that.
  const float* result_scale = nullptr;
  float* result_amax = nullptr;
};

}  // namespace aisp

namespace aisp::inline AISP_FRONT_END {

// One product, planned once: the constructor describes the matrices and lets the library's heuristic choose the algorithm; run()
// only launches it. Pointers are aligned to 256 bytes. The library object outlives its plans.
class MatmulPlan {
 public:
  static constexpr Library library = Library::cublaslt;

  MatmulPlan(const CublasLt& lt, const MatmulProblem& problem) : lt_{lt}, problem_{problem} {
    describe();
    algorithm_ = proposals(1).front();
  }

  // Takes the fastest of the algorithms that the heuristic proposes instead of its first, once in a process for each kind of
  // product. Call it in `prepare`, with the buffers of the runs; C is overwritten.
  void tune(cudaStream_t stream, const void* a, const void* b, void* c, float beta = 0) {
    tune(
        stream, [&](auto one_product) { one_product(a, b, c); }, beta);
  }
  // The same if one product alone would find its operands in the cache: `queue(one_product)` calls one_product(a, b, c) for all
  // that are to be timed together.
  template <class Queue>
  void tune(cudaStream_t stream, const Queue& queue, float beta = 0) {
    static std::map<Kind, Algorithm> chosen;
    const auto [entry, is_new] = chosen.try_emplace(kind(), algorithm_);
    if (is_new) {
      const std::vector<Algorithm> proposed = proposals(most_proposals);
      const auto run_one = [&](std::size_t i) {
        queue([&](const void* a, const void* b, void* c) { multiply(stream, proposed[i], a, b, c, 1, beta); });
      };
      const auto best = fastest(stream, proposed.size(), run_one);
      if (!best) {
        chosen.erase(entry);
        throw Unsupported{"cuBLASLt proposes algorithms for this product and refuses them all"};
      }
      entry->second = proposed[*best];
    }
    algorithm_ = entry->second;
  }

  void run(cudaStream_t stream, const void* a, const void* b, void* c, float alpha = 1, float beta = 0) const {
    multiply(stream, algorithm_, a, b, c, alpha, beta);
  }

 private:
  template <class Handle>
  using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, cublasStatus_t (*)(Handle)>;
  using Layout = Owned<cublasLtMatrixLayout_t>;
  // The library's own struct is unnamed, and nvcc's front end cannot put one into a container.
  struct Algorithm {
    cublasLtMatmulAlgo_t raw{};
  };
  static constexpr int most_proposals = 32;
  // The properties that an algorithm is chosen for, the GPU included.
  using Kind = std::array<std::uint64_t, 18>;
  // One factor in the type that the product's factors have.
  union Factor {
    float f32;
    double f64;
    std::int32_t i32;
  };

  template <class Handle>
  static Owned<Handle> own(Handle handle, const char* destroy) {
    return {handle, CublasLt::function<cublasStatus_t(Handle)>(destroy)};
  }
  static Layout layout(cudaDataType_t type, std::size_t rows, std::size_t columns, std::size_t pitch = 0) {
    const auto create = CublasLt::function<decltype(cublasLtMatrixLayoutCreate)>("cublasLtMatrixLayoutCreate");
    cublasLtMatrixLayout_t handle = nullptr;
    check(create(&handle, type, rows, columns, static_cast<std::int64_t>(pitch != 0 ? pitch : rows)));
    return own(handle, "cublasLtMatrixLayoutDestroy");
  }

  Kind kind() const {
    int device = 0;
    check(cudaGetDevice(&device));
    const MatmulProblem& p = problem_;
    const auto number = [](auto value) { return static_cast<std::uint64_t>(value); };
    return {number(device),
            p.m,
            p.n,
            p.k,
            number(p.operands),
            number(p.result),
            number(p.compute),
            number(p.a_is_transposed),
            number(p.b_is_transposed),
            p.c_pitch,
            number(p.epilogue),
            number(p.fast_accumulation),
            number(p.b_operands.value_or(p.operands)),
            number(p.a_scale != nullptr),
            number(p.a_scales != nullptr),
            number(p.row_scales != nullptr),
            number(p.result_scale != nullptr),
            number(p.result_amax != nullptr)};
  }
  cudaDataType_t factor_type() const {
    if (problem_.compute == CUBLAS_COMPUTE_64F) return CUDA_R_64F;
    return problem_.compute == CUBLAS_COMPUTE_32I && problem_.result == CUDA_R_32I ? CUDA_R_32I : CUDA_R_32F;
  }
  Factor factor(float value) const {
    switch (factor_type()) {
      case CUDA_R_64F: return {.f64 = value};
      case CUDA_R_32I: return {.i32 = static_cast<std::int32_t>(value)};
      default: return {.f32 = value};
    }
  }

  void multiply(cudaStream_t stream, const Algorithm& algorithm, const void* a, const void* b, void* c, float alpha,
                float beta) const {
    const Factor product = factor(alpha), before = factor(beta);
    const void* const added = layout_fp8_ ? nullptr : c;  // in place requires one type
    check(matmul_(lt_.handle(), operation_.get(), &product, b, layout_b_.get(), a, layout_a_.get(), &before, added,
                  layout_c_.get(), c, result_layout(), &algorithm.raw, lt_.workspace(), CublasLt::workspace_bytes, stream));
  }

  // The library is column-major and sees each row-major matrix transposed: it computes C^T = B^T A^T.
  void describe() {
    const MatmulProblem& p = problem_;
    const auto create = CublasLt::function<decltype(cublasLtMatmulDescCreate)>("cublasLtMatmulDescCreate");
    cublasLtMatmulDesc_t handle = nullptr;
    check(create(&handle, p.compute, factor_type()));
    operation_ = own(handle, "cublasLtMatmulDescDestroy");
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.b_is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.a_is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, p.epilogue);
    if (p.fast_accumulation) set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{1});
    if (p.bias != nullptr) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    if (p.bias_gradient != nullptr) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias_gradient);
    if (p.before_activation != nullptr) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.before_activation);
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, static_cast<std::int64_t>(p.n));
    }
    if (p.result_scale != nullptr) set(CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, p.result_scale);
    if (p.result_amax != nullptr) set(CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, p.result_amax);
    // cuBLASLt's A is our B, and the other way round.
    if (p.b_scale != nullptr) set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.b_scale);
    if (p.a_scale != nullptr) set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.a_scale);
    if (p.a_scales != nullptr) scale_blocks();
    if (p.row_scales != nullptr) scale_rows_and_columns();
    layout_a_ = p.a_is_transposed ? layout(p.operands, p.m, p.k) : layout(p.operands, p.k, p.m);
    const cudaDataType_t of_b = p.b_operands.value_or(p.operands);
    layout_b_ = p.b_is_transposed ? layout(of_b, p.k, p.n) : layout(of_b, p.n, p.k);
    // An addend of a result in FP8 has to be wider.
    const bool is_fp8 = p.result == CUDA_R_8F_E4M3 || p.result == CUDA_R_8F_E5M2;
    layout_c_ = layout(is_fp8 ? CUDA_R_16BF : p.result, p.n, p.m, p.c_pitch);
    if (is_fp8) layout_fp8_ = layout(p.result, p.n, p.m, p.c_pitch);
  }
  cublasLtMatrixLayout_t result_layout() const { return layout_fp8_ ? layout_fp8_.get() : layout_c_.get(); }
  void scale_blocks() {
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, problem_.b_scales);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, problem_.a_scales);
  }
  void scale_rows_and_columns() {
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, problem_.column_scales);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, problem_.row_scales);
  }
  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    const auto call = CublasLt::function<decltype(cublasLtMatmulDescSetAttribute)>("cublasLtMatmulDescSetAttribute");
    check(call(operation_.get(), attribute, &value, sizeof value));
  }

  // Returns the algorithms that the heuristic proposes, the best first by its estimate; at least one.
  std::vector<Algorithm> proposals(int most) const {
    const auto create = CublasLt::function<decltype(cublasLtMatmulPreferenceCreate)>("cublasLtMatmulPreferenceCreate");
    const auto limit = CublasLt::function<decltype(cublasLtMatmulPreferenceSetAttribute)>("cublasLtMatmulPreferenceSetAttribute");
    const auto ask = CublasLt::function<decltype(cublasLtMatmulAlgoGetHeuristic)>("cublasLtMatmulAlgoGetHeuristic");
    cublasLtMatmulPreference_t handle = nullptr;
    check(create(&handle));
    const auto preference = own(handle, "cublasLtMatmulPreferenceDestroy");
    const std::size_t bytes = CublasLt::workspace_bytes;
    check(limit(handle, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
    std::array<cublasLtMatmulHeuristicResult_t, most_proposals> found{};
    int count = 0;
    const cublasStatus_t status = ask(lt_.handle(), operation_.get(), layout_b_.get(), layout_a_.get(), layout_c_.get(),
                                      result_layout(), handle, most, found.data(), &count);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) check(status);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || count == 0)
      throw Unsupported{"cuBLASLt has no algorithm for this " + std::to_string(problem_.m) + " x " + std::to_string(problem_.n) +
                        " x " + std::to_string(problem_.k) + " product on this GPU"};
    std::vector<Algorithm> algorithms;
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i)
      if (i == 0 || found[i].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back({found[i].algo});
    return algorithms;
  }

  const CublasLt& lt_;
  MatmulProblem problem_;
  Owned<cublasLtMatmulDesc_t> operation_{nullptr, nullptr};
  Layout layout_a_{nullptr, nullptr}, layout_b_{nullptr, nullptr}, layout_c_{nullptr, nullptr}, layout_fp8_{nullptr, nullptr};
  Algorithm algorithm_;
  decltype(&cublasLtMatmul) matmul_ = CublasLt::function<decltype(cublasLtMatmul)>("cublasLtMatmul");
};

// A product by cuBLASLt for a pair's library variants: the heuristic's choice, and the fastest of its proposals.
class LibraryMatmul {
 public:
  LibraryMatmul(Setup& setup, const MatmulProblem& problem)
      : lt_{setup}, plan_{setup, lt_, problem}, tuned_{setup, lt_, problem}, reproducible_{setup.reproducible()} {}

  void run(Launch& launch, const void* a, const void* b, void* c, float alpha = 1, float beta = 0) const {
    plan_->run(launch.stream, a, b, c, alpha, beta);
  }
  // Call it in the prepare of a variant that calls run_tuned().
  void tune(Launch& launch, const void* a, const void* b, void* c) const {
    if (reproducible_) throw Unsupported{not_reproducible};
    tuned_->tune(launch.stream, a, b, c);
  }
  void run_tuned(Launch& launch, const void* a, const void* b, void* c, float alpha = 1, float beta = 0) const {
    tuned_->run(launch.stream, a, b, c, alpha, beta);
  }

 private:
  Opened<CublasLt> lt_;
  Opened<MatmulPlan> plan_, tuned_;
  bool reproducible_;
};

// clang-format 14 cannot settle on the comment of an inline namespace.
// clang-format off
}  // namespace aisp::inline AISP_FRONT_END
// clang-format on
