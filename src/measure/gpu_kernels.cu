// SPDX-License-Identifier: Apache-2.0
#include "measure/gpu_kernels.hpp"

#include <aisp/check.hpp>

#include "base/own_launch.hpp"

// Kernels are outside any namespace, because their names appear in profiles. Each thread stores, as real kernels do: stores must
// be visible before a kernel counts as done.
__global__ void aisp_probe(std::uint32_t* to) { to[blockIdx.x * blockDim.x + threadIdx.x] = threadIdx.x; }
__global__ void aisp_sample_begin() {}
__global__ void aisp_sample_end() {}

namespace {

__global__ void spin_until_kernel(const volatile std::uint32_t* flag, std::uint32_t wanted) {
  while (*flag < wanted) {
  }
}

}  // namespace

__global__ void aisp_evict_write(uint4* data, std::size_t count, std::uint32_t value) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step)
    data[i] = make_uint4(value, value, value, value);
}

// Reads from front to back, so that every read misses and evicts a dirty line; the lines written last would hit L2.
__global__ void aisp_evict_read(const uint4* data, std::size_t count, std::uint32_t value, std::uint32_t* never) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  std::uint32_t different = 0;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step)
    different |= data[i].x ^ value;
  if (different != 0) *never = different;
}

namespace aisp::measure {

void launch_probe(std::uint32_t* to, cudaStream_t stream) {
  const base::OwnLaunch own;
  aisp_probe<<<probe_words / 128, 128, 0, stream>>>(to);
}
void launch_sample_begin(cudaStream_t stream) {
  const base::OwnLaunch own;
  aisp_sample_begin<<<1, 1, 0, stream>>>();
}
void launch_sample_end(cudaStream_t stream) {
  const base::OwnLaunch own;
  aisp_sample_end<<<1, 1, 0, stream>>>();
}

void launch_spin_until(const std::uint32_t* flag, std::uint32_t wanted, cudaStream_t stream) {
  const base::OwnLaunch own;
  spin_until_kernel<<<1, 1, 0, stream>>>(flag, wanted);
  check(cudaGetLastError());
}

void launch_evict_l2(void* data, std::size_t bytes, std::uint32_t value, cudaStream_t stream) {
  const std::size_t count = bytes / sizeof(uint4);
  {
    const base::OwnLaunch own;
    aisp_evict_write<<<1056, 256, 0, stream>>>(static_cast<uint4*>(data), count, value);
  }
  launch_read(data, bytes, value, stream);
}

void launch_read(void* data, std::size_t bytes, std::uint32_t value, cudaStream_t stream) {
  const base::OwnLaunch own;
  aisp_evict_read<<<1056, 256, 0, stream>>>(static_cast<const uint4*>(data), bytes / sizeof(uint4), value,
                                            static_cast<std::uint32_t*>(data));
  check(cudaGetLastError());
}

}  // namespace aisp::measure
