// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime_api.h>
#include <aisp/check.hpp>

namespace aisp {

namespace detail {
// Throws Unsupported that names the function and the version of CUDA.
[[noreturn]] void throw_missing_driver_function(const char* name, unsigned since);
}  // namespace detail

// Returns a function of the CUDA driver, which aisp is not linked with: `since` is the version that its declaration came with
// (12050 for CUDA 12.5). Null if the driver lacks it, or if there is no driver.
template <class Function>
Function* driver_function(const char* name, unsigned since) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t status = cudaGetDriverEntryPointByVersion(name, &address, since, cudaEnableDefault, &found);
  if (status != cudaSuccess) cudaGetLastError();
  return status == cudaSuccess && found == cudaDriverEntryPointSuccess ? reinterpret_cast<Function*>(address) : nullptr;
}

// The same, but throws Unsupported that names the function and the version of CUDA instead of returning null.
template <class Function>
Function& required_driver_function(const char* name, unsigned since) {
  Function* const function = driver_function<Function>(name, since);
  if (function == nullptr) detail::throw_missing_driver_function(name, since);
  return *function;
}

}  // namespace aisp
