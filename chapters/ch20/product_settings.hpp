// SPDX-License-Identifier: Apache-2.0
// The ways in which a product of few rows can be computed: what cuBLASLt proposes, in its order, and the decoder's own kernel
// with each number of warps a block.
#pragma once
#include <aisp/libraries/cublaslt.hpp>

#include <array>
#include <memory>
#include <vector>

#include "decoder/product.hpp"

namespace aisp::ch20 {

// Y[rows][outputs] = X[rows][depth] W[outputs][depth]^T in bf16.
class ProductSettings {
  using bf16 = __nv_bfloat16;

 public:
  static constexpr int proposals = 16, most_settings = proposals + decoder::most_warps;

  ProductSettings(const decoder::Matrices& weights, int rows) : weights_{weights}, rows_{rows} {}

  // Asks the library, once.
  void propose(const CublasLt& lt) {
    if (lt_ != nullptr) return;
    lt_ = &lt;
    describe();
    cublasLtMatmulPreference_t preference = nullptr;
    check(CublasLt::function<decltype(cublasLtMatmulPreferenceCreate)>("cublasLtMatmulPreferenceCreate")(&preference));
    const std::size_t bytes = CublasLt::workspace_bytes;
    check(CublasLt::function<decltype(cublasLtMatmulPreferenceSetAttribute)>("cublasLtMatmulPreferenceSetAttribute")(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
    std::array<cublasLtMatmulHeuristicResult_t, proposals> found{};
    int count = 0;
    const cublasStatus_t status = CublasLt::function<decltype(cublasLtMatmulAlgoGetHeuristic)>("cublasLtMatmulAlgoGetHeuristic")(
        lt.handle(), operation_.get(), w_.get(), x_.get(), y_.get(), y_.get(), preference, proposals, found.data(), &count);
    CublasLt::function<decltype(cublasLtMatmulPreferenceDestroy)>("cublasLtMatmulPreferenceDestroy")(preference);
    if (status != CUBLAS_STATUS_SUCCESS || count == 0) throw Unsupported{"cuBLASLt has no algorithm for a product of the step"};
    for (int i = 0; i < count; ++i) algorithms_.push_back({found[static_cast<std::size_t>(i)].algo});
  }
  // 0 is what the library thinks best.
  int count() const { return static_cast<int>(algorithms_.size()) + decoder::most_warps; }
  bool is_library(int setting) const { return setting < static_cast<int>(algorithms_.size()); }

  // `early`: our kernel requests its weights while the kernel before it ends.
  void run(cudaStream_t stream, int setting, int layer, const bf16* x, bf16* y, bool early) const {
    if (!is_library(setting)) {
      decoder::multiply_skinny(stream, weights_, layer, x, y, rows_, setting - static_cast<int>(algorithms_.size()) + 1, early,
                               static_cast<int>(multiprocessors()));
      return;
    }
    const float one = 1, zero = 0;
    static const auto matmul = CublasLt::function<decltype(cublasLtMatmul)>("cublasLtMatmul");
    const std::size_t first =
        static_cast<std::size_t>(layer) * static_cast<std::size_t>(weights_.outputs) * static_cast<std::size_t>(weights_.depth);
    check(matmul(lt_->handle(), operation_.get(), &one, weights_.data + first, w_.get(), x, x_.get(), &zero, y, y_.get(), y,
                 y_.get(), &algorithms_[static_cast<std::size_t>(setting)].raw, lt_->workspace(), CublasLt::workspace_bytes,
                 stream));
  }

 private:
  // The library's own struct has no name, which nvcc's front end cannot take in a container.
  struct Algorithm {
    cublasLtMatmulAlgo_t raw{};
  };
  template <class Handle>
  struct Destroy {
    const char* name;
    void operator()(Handle handle) const { CublasLt::function<cublasStatus_t(Handle)>(name)(handle); }
  };
  template <class Handle>
  using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<Handle>>;
  using Layout = Owned<cublasLtMatrixLayout_t>;

  static Layout layout(int rows, int columns) {
    cublasLtMatrixLayout_t handle = nullptr;
    check(CublasLt::function<decltype(cublasLtMatrixLayoutCreate)>("cublasLtMatrixLayoutCreate")(
        &handle, CUDA_R_16BF, static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns), rows));
    return {handle, {"cublasLtMatrixLayoutDestroy"}};
  }
  // The library is column-major: it sees W and X transposed and computes Y^T.
  void describe() {
    cublasLtMatmulDesc_t handle = nullptr;
    check(CublasLt::function<decltype(cublasLtMatmulDescCreate)>("cublasLtMatmulDescCreate")(&handle, CUBLAS_COMPUTE_32F,
                                                                                             CUDA_R_32F));
    operation_ = {handle, {"cublasLtMatmulDescDestroy"}};
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check(CublasLt::function<decltype(cublasLtMatmulDescSetAttribute)>("cublasLtMatmulDescSetAttribute")(
        handle, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
    w_ = layout(weights_.depth, weights_.outputs);
    x_ = layout(weights_.depth, rows_);
    y_ = layout(weights_.outputs, rows_);
  }

  decoder::Matrices weights_;
  int rows_;
  const CublasLt* lt_ = nullptr;
  Owned<cublasLtMatmulDesc_t> operation_{nullptr, {nullptr}};
  Layout w_{nullptr, {nullptr}}, x_{nullptr, {nullptr}}, y_{nullptr, {nullptr}};
  std::vector<Algorithm> algorithms_;
};

}  // namespace aisp::ch20
