// SPDX-License-Identifier: Apache-2.0
// Shared by tests of the device wrappers: a fixture that skips itself if the instructions do not exist, launches of clusters, and
// waits that end, so that a wrong wrapper fails instead of hanging.
#pragma once
#include <gtest/gtest.h>
#include <aisp/check.hpp>
#include <aisp/device/mbarrier.cuh>

#include <cstdint>
#include <vector>

#include "on_gpu.hpp"

namespace aisp {

// A test for GPUs with compute capability `least`.x to `last`.x.
template <int least, int last = 99>
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    int gpus = 0, major = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) GTEST_SKIP() << "no CUDA device";
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    if (major < least || major > last) GTEST_SKIP() << "the instructions do not exist for compute capability " << major << ".x";
  }
};

// One cluster of `blocks` blocks.
template <class... Parameters, class... Arguments>
void launch_cluster(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, const Arguments&... arguments) {
  cudaLaunchAttribute cluster{.id = cudaLaunchAttributeClusterDimension, .val = {.clusterDim = {blocks, 1, 1}}};
  const cudaLaunchConfig_t config{.gridDim = blocks, .blockDim = threads, .attrs = &cluster, .numAttrs = 1};
  check(cudaLaunchKernelEx(&config, kernel, arguments...));
  check(cudaDeviceSynchronize());
}

inline std::vector<unsigned> counted(std::size_t count, unsigned first = 0) {
  std::vector<unsigned> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = first + static_cast<unsigned>(i);
  return values;
}

__device__ inline std::uint64_t now_ns() {
  std::uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}
__device__ inline void pause_us(unsigned microseconds) {
  for (const std::uint64_t end = now_ns() + microseconds * std::uint64_t{1000}; now_ns() < end;) {
  }
}

// Whether the phase completes within 20 ms.
__device__ inline bool completes(std::uint64_t* barrier, unsigned parity) {
  for (const std::uint64_t end = now_ns() + 20'000'000; now_ns() < end;)
    if (device::barrier_try_wait(barrier, parity)) return true;
  return false;
}

}  // namespace aisp
