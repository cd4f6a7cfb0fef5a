// SPDX-License-Identifier: Apache-2.0
// Memory from cudaMalloc, freed by cudaFree at the end of its scope.
#pragma once
#include <aisp/check.hpp>

#include <cstddef>
#include <memory>

namespace aisp::ch01 {

struct CudaFree {
  void operator()(void* memory) const { cudaFree(memory); }
};
template <class T>
using DeviceArray = std::unique_ptr<T[], CudaFree>;

template <class T>
DeviceArray<T> allocate(std::size_t count) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, count * sizeof(T)));
  return DeviceArray<T>{static_cast<T*>(memory)};
}

}  // namespace aisp::ch01
