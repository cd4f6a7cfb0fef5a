// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime_api.h>

#include <exception>
#include <source_location>
#include <string_view>

namespace aisp {

// An exception with a text of its own; copies share the text.
class Error : public std::exception {
 public:
  explicit Error(std::string_view text);
  Error(const Error& other) noexcept;
  Error& operator=(const Error& other) noexcept;
  ~Error() override;
  const char* what() const noexcept override;

 private:
  struct Text;
  Text* text_;
};

// A CUDA call that failed. Sticky errors (illegal address, launch failure) poison the context, so the pair's process ends with
// them.
class CudaError : public Error {
 public:
  CudaError(cudaError_t status, const std::source_location& where);
  cudaError_t status() const noexcept { return status_; }

 private:
  cudaError_t status_;
};

// Thrown by a variant or workload that finds at run time that this machine cannot run it. The reason is one plain clause:
// "io_uring is refused by the kernel (EPERM)".
class Unsupported : public Error {
  using Error::Error;
};

[[noreturn]] void throw_cuda_error(cudaError_t status, const std::source_location& where);

// Throws CudaError with file, line and the runtime's own text unless `status` is success.
inline void check(cudaError_t status, const std::source_location& where = std::source_location::current()) {
  if (status != cudaSuccess) throw_cuda_error(status, where);
}

}  // namespace aisp
