// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime_api.h>

#include <source_location>
#include <stdexcept>
#include <string>

namespace aisp {

// A CUDA call that failed. Sticky errors (illegal address, launch failure) poison the context, so the pair's process ends with
// them.
class CudaError : public std::runtime_error {
 public:
  CudaError(cudaError_t status, const std::source_location& where);
  cudaError_t status() const noexcept { return status_; }

 private:
  cudaError_t status_;
};

// A variant or workload that finds out at run time that this machine cannot run it. The reason is one plain clause:
// "io_uring is refused by the kernel (EPERM)".
class Unsupported : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] void throw_cuda_error(cudaError_t status, const std::source_location& where);

// Throws CudaError with file, line and the runtime's own text unless `status` is success.
inline void check(cudaError_t status, const std::source_location& where = std::source_location::current()) {
  if (status != cudaSuccess) throw_cuda_error(status, where);
}

}  // namespace aisp
