// SPDX-License-Identifier: Apache-2.0
// CUPTI's records of kernels and copies whose overlap is known, on streams and in graphs.
#include <gtest/gtest.h>
#include <aisp/check.hpp>
#include <aisp/graph.hpp>

#include "profile/audit.hpp"

namespace aisp::profile {
namespace {

// 3 ms and more. A busy host may delay the second launch by a part of that, so what runs at once is at least a fifth.
constexpr long long cycles = 6'000'000;
constexpr std::size_t bytes = std::size_t{16} << 20;

__global__ void busy_kernel(long long cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) {
  }
}

class TimelineGpu : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no CUDA device";
    if (const auto& reason = ActivityRecorder::unavailable()) GTEST_SKIP() << *reason;
    check(cudaMalloc(&data_, bytes));
    check(cudaMallocHost(&host_, bytes));
    for (cudaStream_t* stream : {&first_, &second_}) check(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
    check(cudaEventCreateWithFlags(&fork_, cudaEventDisableTiming));
    check(cudaEventCreateWithFlags(&join_, cudaEventDisableTiming));
  }
  void TearDown() override {
    cudaEventDestroy(join_);
    cudaEventDestroy(fork_);
    for (const cudaStream_t stream : {first_, second_}) cudaStreamDestroy(stream);
    cudaFreeHost(host_);
    cudaFree(data_);
  }

  template <class Work>
  Timeline timeline(const Work& work) {
    ActivityRecorder recorder;
    recorder.start();
    work();  // at its first launch under CUPTI a kernel takes the host longer than it runs here
    check(cudaDeviceSynchronize());
    recorder.forget();
    work();
    check(cudaDeviceSynchronize());
    return timeline_of(recorder.stop());
  }

  void kernel(cudaStream_t stream) {
    busy_kernel<<<1, 32, 0, stream>>>(cycles);
    check(cudaGetLastError());
  }
  void upload(cudaStream_t stream) { check(cudaMemcpyAsync(data_, host_, bytes, cudaMemcpyHostToDevice, stream)); }
  // Two kernels, or a kernel and a copy, that wait for nothing but the fork.
  void side_by_side(cudaStream_t stream, bool with_copy) {
    check(cudaEventRecord(fork_, stream));
    check(cudaStreamWaitEvent(second_, fork_));
    kernel(stream);
    if (with_copy) upload(second_);
    else kernel(second_);
    check(cudaEventRecord(join_, second_));
    check(cudaStreamWaitEvent(stream, join_));
  }

  void* data_ = nullptr;
  void* host_ = nullptr;
  cudaStream_t first_ = nullptr, second_ = nullptr;
  cudaEvent_t fork_ = nullptr, join_ = nullptr;
};

TEST_F(TimelineGpu, OneStreamRunsOneAfterAnother) {
  const Timeline one = timeline([&] {
    kernel(first_);
    upload(first_);
    kernel(first_);
  });
  EXPECT_EQ(one.kernels, 2u);
  EXPECT_EQ(one.copies, 1u);
  EXPECT_EQ(one.kernels_ns, one.kernel_ns);
  EXPECT_LT(one.hidden_ns, one.link_ns / 50);
}

TEST_F(TimelineGpu, TwoStreamsRunAtOnce) {
  const Timeline kernels = timeline([&] { side_by_side(first_, false); });
  EXPECT_EQ(kernels.kernels, 2u);
  EXPECT_GT(static_cast<double>(kernels.kernels_ns), 1.2 * static_cast<double>(kernels.kernel_ns));
  const Timeline copy = timeline([&] { side_by_side(first_, true); });
  EXPECT_EQ(copy.copies, 1u);
  EXPECT_GT(copy.hidden_ns, copy.link_ns / 2);
}

TEST_F(TimelineGpu, NodesOfGraphsAreSeen) {
  Graph kernels, copy;
  kernels.capture(first_, [&](cudaStream_t stream) { side_by_side(stream, false); });
  copy.capture(first_, [&](cudaStream_t stream) { side_by_side(stream, true); });
  const Timeline both = timeline([&] { kernels.launch(first_); });
  EXPECT_EQ(both.kernels, 2u);
  EXPECT_GT(static_cast<double>(both.kernels_ns), 1.2 * static_cast<double>(both.kernel_ns));
  const Timeline hidden = timeline([&] { copy.launch(first_); });
  EXPECT_EQ(hidden.kernels, 1u);
  EXPECT_EQ(hidden.copies, 1u);
  EXPECT_GT(hidden.hidden_ns, hidden.link_ns / 2);
}

TEST_F(TimelineGpu, CopiesInsideTheGpuUseNoLink) {
  const Timeline inside = timeline(
      [&] { check(cudaMemcpyAsync(data_, static_cast<char*>(data_) + bytes / 2, bytes / 2, cudaMemcpyDeviceToDevice, first_)); });
  EXPECT_EQ(inside.copies, 1u);
  EXPECT_EQ(inside.link_ns, 0u);
}

}  // namespace
}  // namespace aisp::profile
