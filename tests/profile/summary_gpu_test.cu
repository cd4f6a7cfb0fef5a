// SPDX-License-Identifier: Apache-2.0
// CUPTI's records of known work, and our occupancy against the runtime's.
#include <gtest/gtest.h>
#include <aisp/check.hpp>

#include <algorithm>

#include "profile/recording.hpp"

namespace aisp::profile {
namespace {

__global__ void light_kernel(float* data) { data[blockIdx.x * blockDim.x + threadIdx.x] += 1; }

__global__ void shared_kernel(float* data) {
  __shared__ float tile[6000];
  extern __shared__ float more[];
  tile[threadIdx.x] = data[threadIdx.x];
  more[threadIdx.x] = 1;
  __syncthreads();
  data[threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x] + more[0];
}

__global__ void __launch_bounds__(256, 1) heavy_kernel(float* data) {
  float values[120];
#pragma unroll
  for (int i = 0; i < 120; ++i) values[i] = data[i * 256 + threadIdx.x];
#pragma unroll
  for (int round = 1; round < 4; ++round)
#pragma unroll
    for (int i = 0; i < 120; ++i) values[i] = values[i] * values[(i * 7 + round) % 120] + 1;
#pragma unroll
  for (int i = 0; i < 120; ++i) data[i * 256 + threadIdx.x] = values[i];
}

class SummaryGpu : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no CUDA device";
    if (const auto& reason = ActivityRecorder::unavailable()) GTEST_SKIP() << *reason;
    check(cudaMalloc(&data_, bytes));
  }
  void TearDown() override { cudaFree(data_); }

  template <class Work>
  evidence::Profile profile(const Work& work) {
    check(cudaDeviceSynchronize());
    ActivityRecorder recorder;
    recorder.start(Detail::everything);
    const std::uint64_t begin_ns = ActivityRecorder::now_ns();
    work();
    const std::uint64_t end_ns = ActivityRecorder::now_ns();
    check(cudaDeviceSynchronize());
    Recording recording = framed(recorder.stop(), true);
    recording.host_begin_ns = begin_ns;
    recording.host_end_ns = end_ns;
    return summarize(recording, recording, {{0, sm_limits(0)}});
  }

  static constexpr std::size_t bytes = std::size_t{8} << 20;
  float* data_ = nullptr;
};

TEST_F(SummaryGpu, CountsKernelsCopiesMemsetsWaitsAndAllocations) {
  std::vector<float> host(bytes / sizeof(float));
  const evidence::Profile seen = profile([&] {
    for (int i = 0; i < 40; ++i) light_kernel<<<8, 128>>>(data_);
    heavy_kernel<<<1, 256>>>(data_);
    check(cudaMemcpy(data_, host.data(), bytes, cudaMemcpyHostToDevice));
    check(cudaMemset(data_, 0, 4096));
    void* more = nullptr;
    check(cudaMalloc(&more, std::size_t{1} << 20));
    check(cudaDeviceSynchronize());
    check(cudaFree(more));
  });
  EXPECT_EQ(seen.launches, 41u);
  EXPECT_EQ(seen.launch_calls, 41u);
  EXPECT_GT(seen.launch_ms, 0);
  ASSERT_EQ(seen.kernels.size(), 2u);
  const auto light =
      std::find_if(seen.kernels.begin(), seen.kernels.end(), [](const auto& kernel) { return kernel.name == "light_kernel"; });
  ASSERT_NE(light, seen.kernels.end());
  EXPECT_EQ(light->count, 40u);
  EXPECT_EQ(light->grid, (std::vector<int>{8, 1, 1}));
  EXPECT_EQ(light->block, (std::vector<int>{128, 1, 1}));
  ASSERT_EQ(seen.copies.size(), 1u);
  EXPECT_EQ(seen.copies[0].direction, "pageable host to device");
  EXPECT_DOUBLE_EQ(seen.copies[0].bytes, bytes);
  EXPECT_EQ(seen.memsets.count, 1u);
  EXPECT_DOUBLE_EQ(seen.memsets.bytes, 4096);
  EXPECT_EQ(seen.allocations, 1u);
  EXPECT_GE(seen.peak_allocated_bytes, 1 << 20);
  EXPECT_TRUE(std::any_of(seen.synchronizations.begin(), seen.synchronizations.end(),
                          [](const auto& wait) { return wait.name == "device"; }));
  EXPECT_GT(seen.host_ms, 0);
}

TEST_F(SummaryGpu, OccupancyIsTheRuntimes) {
  const evidence::Profile seen = profile([&] {
    light_kernel<<<8, 96>>>(data_);
    shared_kernel<<<8, 512, 4096>>>(data_);
    heavy_kernel<<<1, 256>>>(data_);
  });
  int warps = 0;
  check(cudaDeviceGetAttribute(&warps, cudaDevAttrMaxThreadsPerMultiProcessor, 0));
  warps /= 32;
  const auto expected = [&](auto* kernel, int threads, std::size_t dynamic_bytes) {
    int blocks = 0;
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, dynamic_bytes));
    return 100.0 * blocks * ((threads + 31) / 32) / warps;
  };
  ASSERT_EQ(seen.kernels.size(), 3u);
  for (const evidence::KernelProfile& kernel : seen.kernels) {
    const double runtime = kernel.name == "light_kernel"    ? expected(light_kernel, 96, 0)
                           : kernel.name == "shared_kernel" ? expected(shared_kernel, 512, 4096)
                                                            : expected(heavy_kernel, 256, 0);
    EXPECT_DOUBLE_EQ(kernel.occupancy_percent.value_or(-1), runtime)
        << kernel.name << ", " << kernel.registers << " registers, " << kernel.static_shared_bytes << " + "
        << kernel.dynamic_shared_bytes;
  }
}

}  // namespace
}  // namespace aisp::profile
