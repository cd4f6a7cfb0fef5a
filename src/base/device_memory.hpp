// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/check.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>

namespace aisp::base {

// Memory of the current GPU. Allocating throws CudaError.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes) { check(cudaMalloc(&data_, bytes)); }
  ~DeviceMemory() { cudaFree(data_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  void* data() const { return data_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

}  // namespace aisp::base
