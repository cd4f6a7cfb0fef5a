// SPDX-License-Identifier: Apache-2.0
// The Cholesky factorization of cuSOLVER in fp32, opened at run time. Types and numbers are those of its API reference.
#pragma once
#include <aisp/check.hpp>
#include <aisp/library.hpp>

#include <stdexcept>
#include <string>

namespace aisp::ch12 {

class Potrf {
 public:
  static constexpr Library library = Library::cusolver;

  // For the lower triangle of a row-major matrix, which is the upper one of the same values by columns.
  explicit Potrf(int n) : n_{n} {
    require(function<Create>("cusolverDnCreate")(&handle_));
    int workspace = 0;
    require(function<BufferSize>("cusolverDnSpotrf_bufferSize")(handle_, upper, n, nullptr, n, &workspace));
    workspace_ = workspace;
    check(cudaMalloc(&space_, static_cast<std::size_t>(workspace) * sizeof(float) + sizeof(int)));
  }
  ~Potrf() {
    cudaFree(space_);
    function<Destroy>("cusolverDnDestroy")(handle_);
  }
  Potrf(const Potrf&) = delete;
  Potrf& operator=(const Potrf&) = delete;

  void run(cudaStream_t stream, float* matrix) {
    require(function<SetStream>("cusolverDnSetStream")(handle_, stream));
    auto* const space = static_cast<float*>(space_);
    require(run_(handle_, upper, n_, matrix, n_, space, workspace_, reinterpret_cast<int*>(space + workspace_)));
  }

 private:
  using Create = int(void**);
  using Destroy = int(void*);
  using SetStream = int(void*, cudaStream_t);
  using BufferSize = int(void*, int, int, float*, int, int*);
  using Run = int(void*, int, int, float*, int, float*, int, int*);
  static constexpr int upper = 1;  // CUBLAS_FILL_MODE_UPPER

  template <class F>
  static F* function(const char* name) {
    return SharedLibrary::open(Library::cusolver).function<F>(name);
  }
  static void require(int status) {
    if (status != 0) throw std::runtime_error{"cuSOLVER status " + std::to_string(status)};
  }

  int n_, workspace_ = 0;
  void *handle_ = nullptr, *space_ = nullptr;
  Run* run_ = function<Run>("cusolverDnSpotrf");
};

}  // namespace aisp::ch12
