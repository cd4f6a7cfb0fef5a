// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <aisp/check.hpp>
#include <aisp/graph.hpp>

#include <cstdint>
#include <optional>

#include "measure/gpu_kernels.hpp"
#include "profile/range_profiler.hpp"
#include "profile/tools.hpp"

namespace aisp::profile {
namespace {

__global__ void copy_kernel(const float4* from, float4* to, std::size_t count) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) to[i] = from[i];
}

__global__ void fma_kernel(float* to, int count) {
  float value = static_cast<float>(threadIdx.x);
  for (int i = 0; i < count; ++i) value = fmaf(value, 1.5F, 2.0F);
  to[blockIdx.x * blockDim.x + threadIdx.x] = value;
}

class CountersOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    int gpus = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) GTEST_SKIP() << "no CUDA device";
    int l2_bytes = 0;
    check(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, 0));
    flush_bytes_ = 2 * static_cast<std::size_t>(l2_bytes);
    check(cudaMalloc(&flush_, flush_bytes_));
    try {
      profiler_.emplace(0, metric_names(MetricSet::deep));
    } catch (const Unsupported& reason) {
      GTEST_SKIP() << reason.what();
    }
  }
  void TearDown() override {
    profiler_.reset();
    cudaFree(flush_);
  }

  // Counts one execution from a cold L2, with what it leaves in L2.
  evidence::Counters count(const std::function<void()>& work) {
    const auto evict = [&] {
      measure::launch_evict_l2(flush_, flush_bytes_, 1, nullptr);
      check(cudaDeviceSynchronize());
    };
    const auto execute = [&] {
      work();
      check(cudaDeviceSynchronize());
    };
    const auto drain = [&] {
      measure::launch_read(flush_, flush_bytes_, 1, nullptr);
      check(cudaDeviceSynchronize());
    };
    const auto values = profiler_->collect(evict, {{"execution", execute}, {"drain", drain}});
    evidence::Counters counters = counters_from(values.at(0));
    *counters.dram_write_bytes += counters_from(values.at(1)).dram_write_bytes.value();
    return counters;
  }

  void* flush_ = nullptr;
  std::size_t flush_bytes_ = 0;
  std::optional<RangeProfiler> profiler_;
};

TEST_F(CountersOnGpu, SeeTheBytesOfACopy) {
  constexpr std::size_t bytes = std::size_t{256} << 20;
  void *from = nullptr, *to = nullptr;
  check(cudaMalloc(&from, bytes));
  check(cudaMalloc(&to, bytes));
  check(cudaMemset(from, 0, bytes));
  const evidence::Counters counters =
      count([&] { copy_kernel<<<1056, 256>>>(static_cast<float4*>(from), static_cast<float4*>(to), bytes / sizeof(float4)); });
  EXPECT_NEAR(*counters.dram_read_bytes, bytes, 0.05 * bytes);
  EXPECT_NEAR(*counters.dram_write_bytes, bytes, 0.05 * bytes);
  EXPECT_THAT(counters.flops, testing::IsEmpty());
  cudaFree(from);
  cudaFree(to);
}

TEST_F(CountersOnGpu, SeeTheOperationsOfAKernel) {
  void* to = nullptr;
  check(cudaMalloc(&to, 132 * 128 * sizeof(float)));
  const evidence::Counters counters = count([&] { fma_kernel<<<132, 128>>>(static_cast<float*>(to), 1000); });
  EXPECT_NEAR(counters.flops.at("fp32"), 2.0 * 132 * 128 * 1000, 0.01 * 2.0 * 132 * 128 * 1000);
  cudaFree(to);
}

TEST_F(CountersOnGpu, SayThatOperationsInAGraphAreNotCounted) {
  void* to = nullptr;
  check(cudaMalloc(&to, 132 * 128 * sizeof(float)));
  cudaStream_t stream = nullptr;
  check(cudaStreamCreate(&stream));
  Graph graph;
  graph.capture(stream, [&](cudaStream_t captured) { fma_kernel<<<132, 128, 0, captured>>>(static_cast<float*>(to), 1000); });
  const evidence::Counters counters = count([&] {
    graph.launch(stream);
    fma_kernel<<<132, 128>>>(static_cast<float*>(to), 1000);
  });
  EXPECT_NEAR(counters.uncounted_instructions_percent.value(), 50, 5);
  EXPECT_THAT(counters.flops, testing::IsEmpty()) << "half of them would pass for all";
  cudaStreamDestroy(stream);
  cudaFree(to);
}

}  // namespace
}  // namespace aisp::profile
