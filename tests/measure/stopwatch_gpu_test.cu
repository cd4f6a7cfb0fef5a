// SPDX-License-Identifier: Apache-2.0
#include "measure/stopwatch.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "measure/statistics/statistics.hpp"

namespace aisp::measure {
namespace {

// Runs for a known time by the GPU's own nanosecond clock.
__global__ void busy_kernel(const float* in, float* out, unsigned long long nanoseconds) {
  unsigned long long start = 0, now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  while (now - start < nanoseconds);
  out[0] = in[0];
}

class Busy final : public Workload {
 public:
  explicit Busy(Setup& setup) : in_{setup.input<float>(1, uniform(0, 1))}, out_{setup.output<float>(1)} {}
  Cost cost() const override { return {}; }
  double expected(std::size_t) const override { return in_.host(0); }
  void millisecond(Launch& launch) { start(launch, 1'000'000); }
  void half(Launch& launch) { start(launch, 500'000); }
  void waits(Launch& launch) {
    start(launch, 100'000);
    check(cudaStreamSynchronize(launch.stream));
  }
  void tokens(Launch& launch) {
    for (int token = 0; token < 4; ++token) {
      start(launch, 200'000);
      launch.token();
    }
  }

 private:
  void start(Launch& launch, unsigned long long nanoseconds) {
    busy_kernel<<<1, 1, 0, launch.stream>>>(in_, out_, nanoseconds);
    check(cudaGetLastError());
  }
  Input<float> in_;
  Output<float> out_;
};

constexpr Pair busy_pair{.teaches = "test",
                         .make = make<Busy>,
                         .baseline = {.name = "millisecond", .run = call<&Busy::millisecond>},
                         .optimized = variants({{.name = "half", .run = call<&Busy::half>}})};

class GpuStopwatch : public testing::Test {
 protected:
  void SetUp() override {
    int gpus = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) GTEST_SKIP() << "no CUDA device";
    session = std::make_unique<pair::Session>(busy_pair, pair::SessionOptions{.gpus = {0}});
  }
  double median_ms(Stopwatch& stopwatch, const Variant& variant) {
    std::vector<double> times_ms;
    for (int i = 0; i < 20; ++i) times_ms.push_back(stopwatch.time(variant).raw_ms);
    return median(times_ms);
  }
  std::unique_ptr<pair::Session> session;
};

TEST_F(GpuStopwatch, EventsReadTheTrueTimeAndALittle) {
  const auto stopwatch = make_event_stopwatch(*session, {});
  EXPECT_NEAR(median_ms(*stopwatch, busy_pair.baseline), 1.0, 0.01);
  EXPECT_NEAR(median_ms(*stopwatch, busy_pair.optimized[0]), 0.5, 0.01);
  const double probe_ms = stopwatch->time_probe();
  EXPECT_GT(probe_ms, 0.0005);
  EXPECT_LT(probe_ms, 0.02);
}

TEST_F(GpuStopwatch, TimerAgreesOnLongWork) {
  EXPECT_NEAR(median_ms(*make_timer_stopwatch(*session, {}), busy_pair.baseline), 1.0, 0.03);
}

TEST_F(GpuStopwatch, AVariantThatWaitsIsNoticedAndDoesNotHang) {
  const Variant waits{.name = "waits", .run = call<&Busy::waits>};
  EXPECT_THROW(make_event_stopwatch(*session, {})->time(waits), WaitsForGpu);
  EXPECT_NEAR(make_event_stopwatch(*session, {.start = Start::immediate})->time(waits).raw_ms, 0.1, 0.05);
}

TEST_F(GpuStopwatch, TokensAreMarkedOnTheGpusClock) {
  const auto stopwatch = make_event_stopwatch(*session, {});
  const Variant tokens{.name = "tokens", .run = call<&Busy::tokens>};
  stopwatch->time(tokens);
  const Sample sample = stopwatch->time(tokens);
  ASSERT_EQ(sample.marks.size(), 4u);
  // Each takes its kernel's 0.2 ms, and some us from the end of one kernel to the start of the next, with the mark between them.
  double before_ms = 0;
  for (const auto& mark : sample.marks) {
    EXPECT_NEAR(mark.at_ms - before_ms, 0.205, 0.01);
    before_ms = mark.at_ms;
  }
}

}  // namespace
}  // namespace aisp::measure
