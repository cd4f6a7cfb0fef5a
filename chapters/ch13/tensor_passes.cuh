// SPDX-License-Identifier: Apache-2.0
// Kernels that write a tensor and add up its words, for pairs whose tensors come from an allocator. A word tells its tensor and
// its place, so that a tensor that another one overwrites has another sum.
#pragma once
#include <aisp/device/reduce.cuh>
#include <aisp/launch.hpp>

#include <cstddef>
#include <cstdint>

namespace aisp::ch13 {

inline constexpr unsigned pass_threads = 256, pass_blocks = 1056, pass_loads = 4;  // blocks: eight for each SM of an H100
inline constexpr std::uint32_t word_step = 0x9E3779B9u;

// Word i of a tensor is first + i * word_step.
static __global__ __launch_bounds__(pass_threads) void write_tensor_kernel(uint4* tensor, std::size_t vectors,
                                                                           const std::uint32_t* first) {
  const std::uint32_t base = *first;
  for (std::size_t i = std::size_t{blockIdx.x} * pass_threads + threadIdx.x; i < vectors;
       i += std::size_t{gridDim.x} * pass_threads) {
    const std::uint32_t word = base + static_cast<std::uint32_t>(4 * i) * word_step;
    tensor[i] = make_uint4(word, word + word_step, word + 2 * word_step, word + 3 * word_step);
  }
}

// Adds the words of a tensor to *sum.
static __global__ __launch_bounds__(pass_threads) void sum_tensor_kernel(const uint4* tensor, std::size_t vectors,
                                                                         std::uint32_t* sum) {
  const std::size_t stride = std::size_t{gridDim.x} * pass_threads;
  std::uint32_t of_thread = 0;
  for (std::size_t first = std::size_t{blockIdx.x} * pass_threads + threadIdx.x; first < vectors; first += pass_loads * stride) {
    uint4 loaded[pass_loads]{};
#pragma unroll
    for (unsigned k = 0; k < pass_loads; ++k)
      if (first + k * stride < vectors) loaded[k] = tensor[first + k * stride];
#pragma unroll
    for (unsigned k = 0; k < pass_loads; ++k) of_thread += loaded[k].x + loaded[k].y + loaded[k].z + loaded[k].w;
  }
  const std::uint32_t of_warp = __reduce_add_sync(device::whole_warp, of_thread);
  if (threadIdx.x % device::warp_size == 0) atomicAdd(sum, of_warp);
}

inline void write_tensor(cudaStream_t stream, void* tensor, std::size_t bytes, const std::uint32_t* first) {
  launch_kernel(stream, write_tensor_kernel, {pass_blocks, pass_threads}, static_cast<uint4*>(tensor), bytes / sizeof(uint4),
                first);
}
inline void sum_tensor(cudaStream_t stream, const void* tensor, std::size_t bytes, std::uint32_t* sum) {
  launch_kernel(stream, sum_tensor_kernel, {pass_blocks, pass_threads}, static_cast<const uint4*>(tensor), bytes / sizeof(uint4),
                sum);
}

// The sum that a tensor of so many bytes has.
constexpr std::uint32_t tensor_sum(std::uint32_t first, std::size_t bytes) {
  const std::uint64_t words = bytes / sizeof(std::uint32_t);
  const std::uint64_t places = words % 2 == 0 ? words / 2 * (words - 1) : (words - 1) / 2 * words;
  return static_cast<std::uint32_t>(words) * first + static_cast<std::uint32_t>(places) * word_step;
}

}  // namespace aisp::ch13
