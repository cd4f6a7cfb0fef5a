// SPDX-License-Identifier: Apache-2.0
// The GPU side of the buffer operations gives what the CPU side gives.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <gtest/gtest.h>
#include <aisp/check.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "pair/memory/memory.hpp"

namespace aisp::pair {
namespace {

class GpuMemory : public testing::Test {
 protected:
  void SetUp() override {
    int gpus = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) GTEST_SKIP() << "no CUDA device";
  }
};

template <class T>
class Twin {
 public:
  explicit Twin(std::size_t count) : host(count) { check(cudaMalloc(&device, count * sizeof(T))); }
  ~Twin() { cudaFree(device); }
  void upload() { check(cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice)); }
  std::vector<T> download() const {
    std::vector<T> copy(host.size());
    check(cudaMemcpy(copy.data(), device, copy.size() * sizeof(T), cudaMemcpyDeviceToHost));
    return copy;
  }
  Elements on_host() const { return {host.data(), element_type<T>(), sizeof(T), host.size(), -1}; }
  Elements on_gpu() const { return {device, element_type<T>(), sizeof(T), host.size(), 0}; }
  std::vector<T> host;
  T* device = nullptr;
};

template <class T>
void same_bits_from(const Pattern& pattern) {
  Twin<T> twin{100001};
  fill_pattern(twin.host.data(), element_type<T>(), twin.host.size(), pattern, 77, -1);
  fill_pattern(twin.device, element_type<T>(), twin.host.size(), pattern, 77, 0);
  const std::vector<T> copy = twin.download();
  EXPECT_EQ(std::memcmp(copy.data(), twin.host.data(), copy.size() * sizeof(T)), 0);
  for (const DigestKey& key : {DigestKey{}, DigestKey{.mask = 0x0123456789ABCDEF, .factor = 0xFEDCBA9876543211}})
    EXPECT_EQ(digest(twin.device, copy.size() * sizeof(T), 0, key), digest(twin.host.data(), copy.size() * sizeof(T), -1, key));
}

TEST_F(GpuMemory, FillsHaveTheSameBitsOnCpuAndGpu) {
  for (const Pattern& pattern :
       {uniform(-1, 1), uniform(-0.3f, 7.1f), normal(0, 1), normal(3, 0.02f), integers(-100, 100), sequence(3, 5)}) {
    same_bits_from<double>(pattern);
    same_bits_from<float>(pattern);
    same_bits_from<__half>(pattern);
    same_bits_from<__nv_bfloat16>(pattern);
    same_bits_from<__nv_fp8_e4m3>(pattern);
  }
  same_bits_from<std::uint32_t>(integers(0, 0xFFFFFFFF));
  same_bits_from<std::int64_t>(integers(-5, 1ll << 40));
  same_bits_from<std::uint8_t>(integers(0, 255));
}

TEST_F(GpuMemory, TablesAndChangesHaveTheSameBitsOnCpuAndGpu) {
  constexpr Axis rows{1000, 101}, columns{1, 1000};
  const Pattern outliers = normal(0, 1).times(20, 99.7f, drawn(columns, 8)).set(0, drawn(rows, 3)).times(1.0f / 3, at(rows, 5));
  const Pattern rising =
      uniform(-1, 1).times(1, 8, all_of(rows), at(columns, 3, 500)).plus_steps(12.3f, 7, all_of(rows), at(columns, 1));
  for (const Pattern& pattern : {zipf(1 << 20), zipf(1000, 1.3), power_law(1, 1 << 24, 2.2), log_normal(900, 1, 1, 4096), text(),
                                 categorical({{-1, 1}, {0, 5}, {1, 1}}), outliers, rising, outliers.on_grid(0.3f),
                                 normal(3, 2).set(NAN, drawn(rows, 9))}) {
    same_bits_from<double>(pattern);
    same_bits_from<float>(pattern);
    same_bits_from<__half>(pattern);
    same_bits_from<__nv_bfloat16>(pattern);
    same_bits_from<__nv_fp8_e4m3>(pattern);
  }
  for (const Pattern& pattern : {zipf(1 << 30), text(), integers(0, 200).set(7, drawn(rows, 20)).times(3, at(columns, 9))}) {
    same_bits_from<std::uint8_t>(pattern);
    same_bits_from<std::int32_t>(pattern);
    same_bits_from<std::int64_t>(pattern);
  }
}

TEST_F(GpuMemory, ComparisonByGroupsAndInStepsAgrees) {
  for (const Axis groups : {Axis{}, Axis{64, 16}, Axis{1, 7}, Axis{1000, 71}, Axis{1, 70001}, Axis{5, 100000}}) {
    Twin<__nv_bfloat16> x{70001}, reference{70001};
    const Pattern pattern = normal(0, 1).times(1, 100, all_of({64, 16}));
    fill_pattern(reference.host.data(), ElementType::bf16, reference.host.size(), pattern, 5, -1);
    x.host = reference.host;
    for (const std::size_t i : {3ul, 4097ul, 69999ul}) x.host[i] = __float2bfloat16_rn(2 * __bfloat162float(x.host[i]) + 1e-3f);
    x.upload();
    reference.upload();
    const Norms cpu = compare(x.on_host(), reference.on_host(), {.groups = groups, .steps = true});
    const Norms gpu = compare(x.on_gpu(), reference.on_gpu(), {.groups = groups, .steps = true});
    EXPECT_EQ(gpu.groups, groups.count);
    EXPECT_EQ(gpu.group, cpu.group) << groups.stride << " " << groups.count;
    EXPECT_NEAR(gpu.group_l2, cpu.group_l2, 1e-9 * cpu.group_l2);
    EXPECT_NEAR(gpu.relative_l2(), cpu.relative_l2(), 1e-12);
    EXPECT_NEAR(gpu.largest_element_error, cpu.largest_element_error, 1e-9);
    EXPECT_EQ(gpu.most_steps, cpu.most_steps);
    EXPECT_EQ(gpu.moved, 3u);
    EXPECT_EQ(cpu.moved, 3u);
  }
}

TEST_F(GpuMemory, ComparisonAgrees) {
  Twin<float> x{70001}, reference{70001};
  fill_pattern(reference.host.data(), ElementType::f32, reference.host.size(), uniform(-1, 1), 5, -1);
  x.host = reference.host;
  x.host[69999] += 0.25f;
  x.host[3] = 0;
  x.upload();
  reference.upload();
  const Norms cpu = compare(x.on_host(), reference.on_host());
  const Norms gpu = compare(x.on_gpu(), reference.on_gpu());
  EXPECT_NEAR(gpu.relative_l2(), cpu.relative_l2(), 1e-12);
  EXPECT_NEAR(gpu.largest_element_error, cpu.largest_element_error, 1e-12);  // the GPU fuses multiply and add
  EXPECT_EQ(gpu.mismatches, 2u);
  x.host[8] = NAN;
  x.upload();
  EXPECT_EQ(compare(x.on_gpu(), reference.on_gpu()).not_finite, 1u);
  EXPECT_EQ(count_not_finite(x.on_gpu()), 1u);
}

TEST_F(GpuMemory, PoisonAndItsRemainsAreCounted) {
  Twin<std::uint32_t> first{1000}, second{1000};
  set_bytes(first.device, 0xFF, 4000, 0);
  set_bytes(second.device, 0x7B, 4000, 0);
  EXPECT_EQ(count_unwritten(first.on_gpu(), 0xFF, second.on_gpu(), 0x7B), 1000u);
  EXPECT_EQ(count_byte_mismatches(first.device, 0xFF, 4000, 0), 0u);
  check(cudaMemset(first.device + 10, 0, 8));
  EXPECT_EQ(count_unwritten(first.on_gpu(), 0xFF, second.on_gpu(), 0x7B), 998u);
  EXPECT_EQ(count_byte_mismatches(first.device, 0xFF, 4000, 0), 8u);
}

TEST_F(GpuMemory, GathersWhatIsThere) {
  Twin<double> twin{100001};
  for (std::size_t i = 0; i < twin.host.size(); ++i) twin.host[i] = static_cast<double>(i) + 0.5;
  twin.upload();
  const std::vector<std::size_t> indices{100000, 0, 77, 77, 65536};
  std::vector<double> from_gpu(indices.size()), from_host(indices.size());
  gather(twin.on_gpu(), indices, from_gpu.data());
  gather(twin.on_host(), indices, from_host.data());
  EXPECT_EQ(from_gpu, (std::vector<double>{100000.5, 0.5, 77.5, 77.5, 65536.5}));
  EXPECT_EQ(from_host, from_gpu);
}

TEST_F(GpuMemory, SortsAscending) {
  Twin<std::int32_t> values{50000};
  fill_pattern(values.device, ElementType::i32, 50000, integers(-1000000, 1000000), 3, 0);
  std::vector<std::int32_t> sorted = values.download();
  std::sort(sorted.begin(), sorted.end());
  sort_elements(values.device, ElementType::i32, 4, 50000, 0);
  EXPECT_EQ(values.download(), sorted);
}

}  // namespace
}  // namespace aisp::pair
