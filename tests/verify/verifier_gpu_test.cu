// SPDX-License-Identifier: Apache-2.0
// Faults that only a GPU can have: unfinished work on other streams, writes past device buffers, missing blocks, device memory
// left behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "verify/verifier.hpp"

namespace aisp::verify {
namespace {

__global__ void double_kernel(const float* x, float* y, std::size_t count, std::size_t skip) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count && i != skip) y[i] = 2 * x[i];
}

__global__ void delay_kernel(long long cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) {
  }
}

class GpuDoubling final : public Workload {
 public:
  static constexpr std::size_t count = 1 << 20;
  static constexpr std::size_t none = ~std::size_t{0}, first_nan = 700'001;
  explicit GpuDoubling(Setup& setup)
      : x_{setup.input<float>(count, uniform(-1, 1))}, y_{setup.output<float>(count, {.name = "y"})}, other_{setup.stream()} {}
  Cost cost() const override { return {.bytes = 8.0 * count}; }
  double expected(std::size_t i) const override { return 2 * x_.host(i); }

  void honest(Launch& launch) { start(launch.stream, none); }
  void skips(Launch& launch) { start(launch.stream, count - 3); }
  void hidden_stream(Launch&) {
    delay_kernel<<<1, 1, 0, other_>>>(20'000'000);
    start(other_, none);
  }
  void leaks(Launch& launch) {
    void* memory = nullptr;
    check(cudaMalloc(&memory, 8 << 20));
    start(launch.stream, none);
  }
  void overruns(Launch& launch) {
    start(launch.stream, none);
    check(cudaMemsetAsync(y_.get() + count, 0, 16, launch.stream));
  }
  // All bits set are NaN.
  void writes_nan(Launch& launch) {
    start(launch.stream, none);
    for (const std::size_t i : {first_nan, first_nan + 1, count - 1})
      check(cudaMemsetAsync(y_.get() + i, 0xFF, sizeof(float), launch.stream));
  }
  void spoils_input(Launch& launch) {
    start(launch.stream, none);
    check(cudaMemsetAsync(const_cast<float*>(x_.get()) + 99, 1, 4, launch.stream));
  }

 private:
  void start(cudaStream_t stream, std::size_t skip) {
    double_kernel<<<count / 256, 256, 0, stream>>>(x_, y_, count, skip);
    check(cudaGetLastError());
  }
  Input<float> x_;
  Output<float> y_;
  cudaStream_t other_;
};

constexpr Pair gpu_pair{.teaches = "test",
                        .make = make<GpuDoubling>,
                        .baseline = {.name = "honest", .run = call<&GpuDoubling::honest>},
                        .optimized = variants({{.name = "again", .run = call<&GpuDoubling::honest>}}),
                        .tolerance = exact};

class GpuVerify : public testing::Test {
 protected:
  void SetUp() override {
    int gpus = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) GTEST_SKIP() << "no CUDA device";
  }
  std::vector<std::string> failed_checks(const Variant& variant, const Options& options = {}) {
    pair::Session session{gpu_pair, {.gpus = {0}}};
    const auto outcomes = verify(session, {&gpu_pair.baseline, &variant}, options);
    EXPECT_TRUE(outcomes[0].passed());
    std::vector<std::string> checks;
    for (const auto& problem : outcomes[1].problems) checks.push_back(problem.check);
    return checks;
  }
  bool caught(const std::string& check, const Variant& variant) {
    const auto checks = failed_checks(variant);
    return std::find(checks.begin(), checks.end(), check) != checks.end();
  }
};

TEST_F(GpuVerify, HonestPasses) { EXPECT_TRUE(failed_checks(gpu_pair.optimized[0]).empty()); }
TEST_F(GpuVerify, SkippedElement) { EXPECT_TRUE(caught("written", {.name = "skips", .run = call<&GpuDoubling::skips>})); }
TEST_F(GpuVerify, FirstNanIsFoundOnTheGpu) {
  pair::Session session{gpu_pair, {.gpus = {0}}};
  const Variant writes_nan{.name = "nan", .run = call<&GpuDoubling::writes_nan>};
  const auto outcomes = verify(session, {&gpu_pair.baseline, &writes_nan}, {});
  const auto finite = std::ranges::find(outcomes[1].problems, "finite", &evidence::Problem::check);
  ASSERT_NE(finite, outcomes[1].problems.end());
  EXPECT_THAT(finite->message,
              testing::MatchesRegex("3 of 1048576 elements of y are NaN or infinite, the first of them is element "
                                    "700001: NaN, expected -?[01][.0-9e-]*"));
}
TEST_F(GpuVerify, HiddenStream) { EXPECT_TRUE(caught("finished", {.name = "hidden", .run = call<&GpuDoubling::hidden_stream>})); }
// As if another process had taken what the driver's account lost.
TEST_F(GpuVerify, MemoryOfOthersIsNoLeak) {
  const Variant grows{.name = "leaks", .run = call<&GpuDoubling::leaks>};
  std::uint64_t own_bytes = 1 << 30;
  Options options;
  options.own_device_bytes = [&] { return own_bytes; };
  EXPECT_TRUE(failed_checks(grows, options).empty());
  options.own_device_bytes = [&] { return own_bytes += 8 << 20; };
  EXPECT_EQ(failed_checks(grows, options), std::vector<std::string>{"memory"});
}
TEST_F(GpuVerify, DeviceLeak) { EXPECT_TRUE(caught("memory", {.name = "leaks", .run = call<&GpuDoubling::leaks>})); }
TEST_F(GpuVerify, WriteBehindTheBuffer) {
  EXPECT_TRUE(caught("red_zones", {.name = "over", .run = call<&GpuDoubling::overruns>}));
}
TEST_F(GpuVerify, ModifiedInput) {
  EXPECT_TRUE(caught("inputs_unchanged", {.name = "spoil", .run = call<&GpuDoubling::spoils_input>}));
}

}  // namespace
}  // namespace aisp::verify
