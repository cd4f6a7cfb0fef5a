// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/check.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>

namespace aisp::base {

// Memory of the current GPU. Allocating throws CudaError.
class DeviceBytes {
 public:
  explicit DeviceBytes(std::size_t count) { check(cudaMalloc(&data_, count)); }
  ~DeviceBytes() { cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

}  // namespace aisp::base
