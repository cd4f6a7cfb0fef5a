// SPDX-License-Identifier: Apache-2.0
// The two clocks that aisp knows, events and CUPTI's durations, on the same kernels.
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <vector>

#include "measure/gpu_kernels.hpp"
#include "measure/statistics/statistics.hpp"
#include "measure/stopwatch.hpp"
#include "profile/activity.hpp"

namespace aisp::measure {
namespace {

__global__ void copy_kernel(const float4* in, float4* out, std::size_t count, int repeats) {
  for (int repeat = 0; repeat < repeats; ++repeat)
    for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += std::size_t{gridDim.x} * blockDim.x)
      out[i] = in[i];
}

class Copies final : public Workload {
 public:
  explicit Copies(Setup& setup) : in_{setup.input<float>(elements, uniform(0, 1))}, out_{setup.output<float>(elements)} {}
  Cost cost() const override { return {}; }
  double expected(std::size_t index) const override { return in_.host(index); }
  template <std::size_t kilobytes, int repeats = 1>
  void copy(Launch& launch) {
    const std::size_t count = kilobytes * 1024 / sizeof(float4);
    const auto blocks = static_cast<unsigned>(std::min<std::size_t>((count + 255) / 256, 1056));
    copy_kernel<<<blocks, 256, 0, launch.stream>>>(reinterpret_cast<const float4*>(in_.get()),
                                                   reinterpret_cast<float4*>(out_.get()), count, repeats);
    check(cudaGetLastError());
  }

 private:
  static constexpr std::size_t elements = std::size_t{1} << 26;
  Input<float> in_;
  Output<float> out_;
};

constexpr Variant sizes[] = {{.name = "4 KiB", .run = call<&Copies::copy<4>>},
                             {.name = "64 KiB", .run = call<&Copies::copy<64>>},
                             {.name = "1 MiB", .run = call<&Copies::copy<1024>>},
                             {.name = "4 MiB", .run = call<&Copies::copy<4096>>},
                             {.name = "16 MiB", .run = call<&Copies::copy<16384>>},
                             {.name = "64 MiB", .run = call<&Copies::copy<65536>>},
                             {.name = "256 MiB", .run = call<&Copies::copy<262144>>},
                             {.name = "10 x 256 MiB", .run = call<&Copies::copy<262144, 10>>},
                             {.name = "70 x 256 MiB", .run = call<&Copies::copy<262144, 70>>}};
constexpr Pair copies{.teaches = "test", .make = make<Copies>, .baseline = sizes[0], .optimized = variants({sizes[1]})};

// Returns the duration of the probe or the copy: all other records are the harness's.
double last_duration_us(std::vector<profile::Activity> activities) {
  std::erase_if(activities, [](const profile::Activity& activity) {
    return activity.own && activity.name.find("aisp_probe") == std::string::npos;
  });
  return static_cast<double>(activities.back().end_ns - activities.back().start_ns) / 1e3;
}

// For each size, in the same samples: what the events read, less what they read for the probe beyond its own duration.
TEST(Agreement, EventsReadWhatCuptiRecords) {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) GTEST_SKIP() << "no CUDA device";
  pair::Session session{copies, pair::SessionOptions{.gpus = {0}}};
  const auto stopwatch = make_event_stopwatch(session, {});
  profile::ActivityRecorder recorder;
  for (const Variant& variant : sizes) {
    for (int i = 0; i < 5; ++i) stopwatch->time(variant);
    std::vector<double> read_us, offset_us, recorded_us;
    for (int i = 0; i < 31; ++i) {
      recorder.start();
      const double probe_us = stopwatch->time_probe() * 1e3;
      offset_us.push_back(probe_us - last_duration_us(recorder.stop()));
      recorder.start();
      read_us.push_back(stopwatch->time(variant).raw_ms * 1e3);
      recorded_us.push_back(last_duration_us(recorder.stop()));
    }
    const double events_us = median(read_us) - median(offset_us), cupti_us = median(recorded_us);
    std::printf("%-14s events %.2f us, CUPTI %.2f us, difference %+.2f us, offset %.2f us\n", std::string{variant.name}.c_str(),
                events_us, cupti_us, events_us - cupti_us, median(offset_us));
    EXPECT_NEAR(events_us, cupti_us, std::max(0.2, 0.01 * cupti_us)) << variant.name;
  }
}

}  // namespace
}  // namespace aisp::measure
