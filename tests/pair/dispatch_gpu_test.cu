// SPDX-License-Identifier: Apache-2.0
// Dispatch in code that nvcc compiles: the kernel of the size is the one that runs.
#include <gtest/gtest.h>
#include <aisp/check.hpp>
#include <aisp/dispatch.hpp>

namespace aisp {
namespace {

template <int width>
__global__ void width_kernel(int* out) {
  *out = width;
}

TEST(GpuDispatch, LaunchesTheKernelOfTheSize) {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) GTEST_SKIP() << "no CUDA device";
  int* out = nullptr;
  check(cudaMallocManaged(&out, sizeof *out));
  for (const std::uint64_t width : {3u, 7u, 5u}) {
    dispatch<3, 5, 7>("width", width, [&]<int compiled>() { width_kernel<compiled><<<1, 1>>>(out); });
    check(cudaDeviceSynchronize());
    EXPECT_EQ(*out, static_cast<int>(width));
  }
  EXPECT_THROW((dispatch<3, 5, 7>("width", 4, [&]<int compiled>() { width_kernel<compiled><<<1, 1>>>(out); })), Unsupported);
  check(cudaFree(out));
}

}  // namespace
}  // namespace aisp
