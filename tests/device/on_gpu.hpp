// SPDX-License-Identifier: Apache-2.0
// A vector's copy in device memory.
#pragma once
#include <aisp/check.hpp>

#include <cstddef>
#include <vector>

namespace aisp {

template <class T>
class OnGpu {
 public:
  explicit OnGpu(const std::vector<T>& host) : count_{host.size()} {
    check(cudaMalloc(&data_, count_ * sizeof(T)));
    check(cudaMemcpy(data_, host.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~OnGpu() { cudaFree(data_); }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;
  T* get() const { return data_; }
  std::vector<T> host() const {
    std::vector<T> copy(count_);
    check(cudaMemcpy(copy.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return copy;
  }

 private:
  T* data_ = nullptr;
  std::size_t count_;
};

}  // namespace aisp
