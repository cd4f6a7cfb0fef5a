// SPDX-License-Identifier: Apache-2.0
// The library's own grouped product, whose row counts are on the host and whose pointers are in device memory.
#pragma once
#include <cuda_bf16.h>
#include <aisp/libraries/cublas.hpp>

#include <cstddef>
#include <vector>

namespace aisp::ch17 {

// y[group] = x[group] w[group]^T, row-major, bf16: x[rows][k], w[group][n][k].
class GroupedCublas {
 public:
  GroupedCublas(Setup& setup, std::size_t n, std::size_t k, const std::vector<int>& offsets)
      : cublas_{setup}, n_{n}, k_{k}, pointers_{setup.scratch<const void*>(3 * (offsets.size() - 1), {.name = "pointers"})} {
    for (std::size_t group = 0; group + 1 < offsets.size(); ++group) {
      const int rows = offsets[group + 1] - offsets[group];
      if (rows == 0) continue;
      of_group_.push_back(group);
      first_rows_.push_back(static_cast<std::size_t>(offsets[group]));
      counts_.push_back(rows);
    }
    transposed_.assign(count(), CUBLAS_OP_T), plain_.assign(count(), CUBLAS_OP_N);
    ns_.assign(count(), static_cast<int>(n)), ks_.assign(count(), static_cast<int>(k)), of_each_.assign(count(), 1);
    one_.assign(count(), 1), zero_.assign(count(), 0);
  }

  // In prepare: lists where the matrices lie.
  void set(const __nv_bfloat16* x, const __nv_bfloat16* w, __nv_bfloat16* y) {
    std::vector<const void*> lists(3 * count());
    for (std::size_t i = 0; i < count(); ++i) {
      lists[i] = w + of_group_[i] * n_ * k_;
      lists[count() + i] = x + first_rows_[i] * k_;
      lists[2 * count() + i] = y + first_rows_[i] * n_;
    }
    check(cudaMemcpy(pointers_.get(), lists.data(), lists.size() * sizeof(void*), cudaMemcpyHostToDevice));
  }
  void run(cudaStream_t stream) {
    cublas_->use(stream);
    const auto call = Cublas::function<decltype(cublasGemmGroupedBatchedEx)>("cublasGemmGroupedBatchedEx");
    check(call(cublas_->handle(), transposed_.data(), plain_.data(), ns_.data(), counts_.data(), ks_.data(), one_.data(),
               pointers_.get(), CUDA_R_16BF, ks_.data(), pointers_.get() + count(), CUDA_R_16BF, ks_.data(), zero_.data(),
               const_cast<void* const*>(pointers_.get() + 2 * count()), CUDA_R_16BF, ns_.data(), static_cast<int>(count()),
               of_each_.data(), CUBLAS_COMPUTE_32F));
  }

 private:
  std::size_t count() const { return counts_.size(); }

  Opened<Cublas> cublas_;
  std::size_t n_, k_;
  Scratch<const void*> pointers_;
  // The groups with rows.
  std::vector<std::size_t> of_group_, first_rows_;
  std::vector<cublasOperation_t> transposed_, plain_;
  std::vector<int> counts_, ns_, ks_, of_each_;
  std::vector<float> one_, zero_;
};

}  // namespace aisp::ch17
