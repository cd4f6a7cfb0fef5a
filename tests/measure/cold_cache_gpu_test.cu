// SPDX-License-Identifier: Apache-2.0
// Samples are cold whatever a variant has done to keep its data in L2. One thread follows a chain of addresses through a quarter
// of L2, each line once: a step takes two to three times as long from memory as from L2.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "measure/statistics/statistics.hpp"
#include "measure/stopwatch.hpp"

namespace aisp::measure {
namespace {

using testing::Contains;
using testing::HasSubstr;

constexpr std::size_t line_words = 32;
constexpr std::uint32_t most_value = 1000;

template <bool evict_last>
__device__ std::uint32_t load(const std::uint32_t* address) {
  std::uint32_t value = 0;
  if constexpr (evict_last) {
    std::uint64_t policy = 0;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("ld.global.L2::cache_hint.u32 %0, [%1], %2;"
                 : "=r"(value)
                 : "l"(__cvta_generic_to_global(address)), "l"(policy));
  } else {
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(value) : "l"(__cvta_generic_to_global(address)));
  }
  return value;
}

// A number for each user, so that what is set for one's kernel is not set for another's.
enum class User { plain, window, evict_last, carve_out, preference };

// The next line hangs on the value of this one, whose upper bits are zeros, which the compiler does not know. A multiplier of 5
// and an odd summand lead through all lines, whose number is a power of two.
template <User user>
__global__ void chase_kernel(const std::uint32_t* data, std::uint32_t lines, int steps, std::uint32_t* end) {
  std::uint32_t line = 0;
  for (int step = 0; step < steps; ++step) {
    const std::uint32_t value = load<user == User::evict_last>(data + line * line_words);
    line = (5 * line + 12345 + (value >> 20)) & (lines - 1);
  }
  *end = line;
}

// An access to any of it keeps its line, in the part of L2 that is set aside.
void keep_in_l2(cudaStream_t stream, const void* data, std::size_t bytes) {
  int most = 0;
  check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxPersistingL2CacheSize, 0));
  check(cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, static_cast<std::size_t>(most)));
  cudaStreamAttrValue value{};
  value.accessPolicyWindow.base_ptr = const_cast<void*>(data);
  value.accessPolicyWindow.num_bytes = bytes;
  value.accessPolicyWindow.hitRatio = 1;
  value.accessPolicyWindow.hitProp = cudaAccessPropertyPersisting;
  value.accessPolicyWindow.missProp = cudaAccessPropertyStreaming;
  check(cudaStreamSetAttribute(stream, cudaStreamAttributeAccessPolicyWindow, &value));
}

std::size_t quarter_of_l2_words() {
  int bytes = 0;
  check(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, 0));
  return std::bit_floor(static_cast<std::size_t>(bytes) / 4) / sizeof(std::uint32_t);
}

class Chases final : public Workload {
 public:
  explicit Chases(Setup& setup)
      : data_{setup.input<std::uint32_t>(quarter_of_l2_words(), integers(0, most_value))}, end_{setup.output<std::uint32_t>(1)} {}
  Cost cost() const override { return {}; }
  void plain(Launch& launch) { chase<User::plain>(launch); }
  void with_a_window(Launch& launch) {
    keep_in_l2(launch.stream, data_, data_.bytes());
    chase<User::window>(launch);
  }
  void with_evict_last(Launch& launch) { chase<User::evict_last>(launch); }
  void with_a_carve_out(Launch& launch) {
    check(cudaFuncSetAttribute(chase_kernel<User::carve_out>, cudaFuncAttributePreferredSharedMemoryCarveout,
                               cudaSharedmemCarveoutMaxL1));
    chase<User::carve_out>(launch);
  }
  void with_a_preference(Launch& launch) {
    check(cudaDeviceSetCacheConfig(cudaFuncCachePreferL1));
    chase<User::preference>(launch);
  }

 private:
  template <User user>
  void chase(Launch& launch) {
    const auto lines = static_cast<std::uint32_t>(data_.bytes() / (line_words * sizeof(std::uint32_t)));
    const int steps = static_cast<int>(std::min<std::uint32_t>(2048, lines));
    chase_kernel<user><<<1, 1, 0, launch.stream>>>(data_, lines, steps, end_);
    check(cudaGetLastError());
  }
  Input<std::uint32_t> data_;
  Output<std::uint32_t> end_;
};

constexpr Variant plain{.name = "plain", .run = call<&Chases::plain>};
constexpr Pair chases{.teaches = "test",
                      .make = make<Chases>,
                      .baseline = plain,
                      .optimized = variants({{.name = "evict_last", .run = call<&Chases::with_evict_last>}})};

std::size_t set_aside_bytes() {
  std::size_t bytes = 0;
  check(cudaDeviceGetLimit(&bytes, cudaLimitPersistingL2CacheSize));
  return bytes;
}

class ColdSamples : public testing::Test {
 protected:
  void SetUp() override {
    int gpus = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) GTEST_SKIP() << "no CUDA device";
    session_ = std::make_unique<pair::Session>(chases, pair::SessionOptions{.gpus = {0}});
  }
  void TearDown() override {
    if (!session_) return;
    cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, 0);
    cudaCtxResetPersistingL2Cache();
  }

  static bool can_set_aside() {
    int most = 0;
    check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxPersistingL2CacheSize, 0));
    return most > 0;
  }

  // Medians of samples that take turns; as many before them bring the clock up. Settings that a variant leaves behind are in
  // `changed_`.
  std::vector<double> medians_ms(const std::vector<const Variant*>& variants, Cache cache) {
    constexpr int rounds = 20;
    const auto stopwatch = make_event_stopwatch(*session_, {.start = start_, .cache = cache});
    for (const Variant* variant : variants) stopwatch->executor().load(*variant);
    std::vector<std::vector<double>> times_ms(variants.size());
    for (int round = -rounds; round < rounds; ++round)
      for (std::size_t v = 0; v < variants.size(); ++v) {
        const double time_ms = stopwatch->time(*variants[v]).raw_ms;
        const std::vector<std::string>& changed = stopwatch->executor().changed_limits();
        changed_.insert(changed_.end(), changed.begin(), changed.end());
        if (round >= 0) times_ms[v].push_back(time_ms);
      }
    std::vector<double> medians;
    for (std::vector<double>& times : times_ms) medians.push_back(median(times));
    return medians;
  }

  // The variant's samples, and those of a plain one that follow them, are as slow as where all are plain; and the variant is
  // faster when it is warm, so that this says something.
  void expect_cold(const char* what, const Variant& variant) {
    const double warm_ms = medians_ms({&variant}, Cache::hot)[0];
    const std::vector<double> cold_ms = medians_ms({&variant, &plain}, Cache::cold);
    std::printf("%-32s warm %.4f ms, after the flush %.4f ms, plain behind it %.4f ms; all plain %.4f ms\n", what, warm_ms,
                cold_ms[0], cold_ms[1], plain_ms_);
    EXPECT_GT(cold_ms[0], 1.3 * warm_ms) << what;
    EXPECT_NEAR(cold_ms[0], plain_ms_, 0.1 * plain_ms_) << what;
    EXPECT_NEAR(cold_ms[1], plain_ms_, 0.1 * plain_ms_) << what;
  }
  void measure_plain() { plain_ms_ = medians_ms({&plain, &plain}, Cache::cold)[0]; }

  std::unique_ptr<pair::Session> session_;
  Start start_ = Start::released;
  double plain_ms_ = 0;
  std::vector<std::string> changed_;
};

TEST_F(ColdSamples, OfAPlainVariant) {
  measure_plain();
  expect_cold("plain", plain);
  EXPECT_THAT(changed_, testing::IsEmpty());
}

TEST_F(ColdSamples, AlsoWhereTheRunSetsL2AsideAndAWindow) {
  if (!can_set_aside()) GTEST_SKIP() << "no part of L2 can be set aside";
  start_ = Start::immediate;  // setting the limit waits for the GPU, so a run that does it cannot be held back
  measure_plain();
  const std::size_t before_bytes = set_aside_bytes();
  expect_cold("set aside and window, in the run", {.name = "window", .run = call<&Chases::with_a_window>});
  EXPECT_THAT(changed_, Contains("cudaLimitPersistingL2CacheSize"));
  EXPECT_THAT(changed_, Contains(HasSubstr("window")));
  EXPECT_EQ(set_aside_bytes(), before_bytes);
}

// Settings of the constructor stay as they are in every sample.
TEST_F(ColdSamples, AlsoWhereL2IsSetAsideForGood) {
  if (!can_set_aside()) GTEST_SKIP() << "no part of L2 can be set aside";
  measure_plain();
  const Buffer& data = session_->buffers().front();
  keep_in_l2(session_->launch().stream, data.data, data.bytes());
  expect_cold("set aside and window, for good", plain);
  EXPECT_THAT(changed_, testing::IsEmpty());
  EXPECT_GT(set_aside_bytes(), 0u);
}

TEST_F(ColdSamples, AlsoWhereLoadsAskToBeEvictedLast) {
  measure_plain();
  expect_cold("evict_last", {.name = "evict_last", .run = call<&Chases::with_evict_last>});
}

TEST_F(ColdSamples, AlsoWhereL1IsAsLargeAsCanBe) {
  measure_plain();
  expect_cold("carve-out", {.name = "carve_out", .run = call<&Chases::with_a_carve_out>});
}

TEST_F(ColdSamples, AlsoWhereTheDevicePrefersL1) {
  measure_plain();
  expect_cold("cache preference", {.name = "preference", .run = call<&Chases::with_a_preference>});
  EXPECT_THAT(changed_, Contains(HasSubstr("cache preference")));
}

}  // namespace
}  // namespace aisp::measure
