// SPDX-License-Identifier: Apache-2.0
#include <aisp/check.hpp>

#include "peak/kernels.hpp"

namespace aisp::peak {
namespace {

constexpr unsigned pattern_blocks = 1024, pattern_threads = 256;

__device__ float hash_of(std::size_t i) { return static_cast<float>((static_cast<std::uint32_t>(i) * 2654435761u) >> 20); }

__device__ std::size_t first_element() { return static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ std::size_t all_threads() { return static_cast<std::size_t>(gridDim.x) * blockDim.x; }

__global__ void pattern_kernel(float* data, std::size_t count, float rank) {
  for (std::size_t i = first_element(); i < count; i += all_threads()) data[i] = hash_of(i) + rank;
}

__global__ void count_wrong_kernel(const float* data, std::size_t count, Expected expected, unsigned long long* wrong) {
  unsigned long long found = 0;
  for (std::size_t i = first_element(); i < count; i += all_threads()) {
    const float value =
        expected.scale * hash_of(expected.first + i % expected.chunk) + expected.offset + static_cast<float>(i / expected.chunk);
    found += data[i] == value ? 0 : 1;  // a NaN is wrong too
  }
  if (found > 0) atomicAdd(wrong, found);
}

}  // namespace

void launch_pattern(float* data, std::size_t count, int rank, cudaStream_t stream) {
  pattern_kernel<<<pattern_blocks, pattern_threads, 0, stream>>>(data, count, static_cast<float>(rank));
  check(cudaGetLastError());
}

void launch_count_wrong(const float* data, std::size_t count, const Expected& expected, unsigned long long* wrong,
                        cudaStream_t stream) {
  count_wrong_kernel<<<pattern_blocks, pattern_threads, 0, stream>>>(data, count, expected, wrong);
  check(cudaGetLastError());
}

}  // namespace aisp::peak
