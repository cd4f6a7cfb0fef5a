// SPDX-License-Identifier: Apache-2.0
#include "peak/kernels.hpp"

#include <aisp/check.hpp>

#include <algorithm>

namespace aisp::peak {
namespace {

constexpr unsigned block_threads = 256, read_threads = 1024;
static_assert(level_chunk_bytes == read_threads * sizeof(uint4));

__device__ std::size_t global_thread() { return static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; }

__device__ std::uint64_t nanoseconds() {
  std::uint64_t value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
  return value;
}

// Volatile, so that no load is left out or moved over a reading of the clock.
template <bool through_l1>
__device__ std::uint64_t load(std::uint64_t address) {
  std::uint64_t value;
  if constexpr (through_l1) asm volatile("ld.global.ca.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  else asm volatile("ld.global.cg.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}

// The value is improbable, but the compiler cannot know that it never comes.
__device__ void keep(std::uint32_t value, std::uint32_t* sink) {
  if (value == 0x9e3779b9u) *sink = value;
}

__global__ void link_kernel(char* base, const std::uint64_t* order, std::size_t count, bool to_itself) {
  const std::size_t i = global_thread();
  if (i >= count) return;
  const std::size_t next = to_itself ? i : i + 1 == count ? 0 : i + 1;
  *reinterpret_cast<std::uint64_t*>(base + order[i]) = reinterpret_cast<std::uint64_t>(base + order[next]);
}

// A few blocks go through the order side by side, so that what comes last in it is what was touched last.
__global__ void touch_kernel(const char* base, const std::uint64_t* order, std::size_t count, std::uint32_t* sink) {
  const std::size_t threads = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  std::uint64_t sum = 0;
  // The order itself passes by without staying.
  for (std::size_t i = global_thread(); i < count; i += threads)
    sum ^= load<false>(reinterpret_cast<std::uint64_t>(base + __ldcs(&order[i])));
  keep(static_cast<std::uint32_t>(sum ^ (sum >> 32)), sink);
}

template <bool through_l1>
__global__ void chase_kernel(std::uint64_t first, std::size_t warm, std::size_t steps, ChaseTime* time) {
  std::uint64_t at = first;
  for (std::size_t i = 0; i < warm; ++i) at = load<through_l1>(at);
  const std::uint64_t start_ns = nanoseconds();
  const long long start = clock64();
  for (std::size_t i = 0; i < steps; i += chase_unroll) {
#pragma unroll
    for (int k = 0; k < chase_unroll; ++k) at = load<through_l1>(at);
  }
  const long long end = clock64();
  const std::uint64_t end_ns = nanoseconds();
  time->cycles = static_cast<std::uint64_t>(end - start);
  time->ns = at == 0 ? 0 : end_ns - start_ns;  // no address is 0: the last load counts
}

__global__ void line_latencies_kernel(const char* base, const std::uint64_t* order, std::size_t count, float* cycles) {
  constexpr int loads = 33;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t at = load<false>(reinterpret_cast<std::uint64_t>(base + order[i]));
    at = load<false>(at);
    const long long start = clock64();
#pragma unroll
    for (int k = 0; k < loads; ++k) at = load<false>(at);
    // The first of them waits for the load before the clock, the last is not waited for.
    const long long end = clock64();
    cycles[i] = static_cast<float>(end - start) / (at == 0 ? 1 : loads);
  }
}

__device__ std::uint32_t shared_load(std::uint32_t address) {
  std::uint32_t value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

__global__ void on_chip_chase_kernel(ChaseTime* registers, ChaseTime* shared, std::uint32_t* sink) {
  constexpr int words = 1024, stride = 33;  // odd, so that every word has its turn
  __shared__ std::uint32_t next[words];
  for (int i = 0; i < words; ++i) next[i] = static_cast<std::uint32_t>(__cvta_generic_to_shared(&next[(i + stride) % words]));
  float x = static_cast<float>(next[0]);
  std::uint64_t start_ns = nanoseconds();
  long long start = clock64();
  for (int i = 0; i < on_chip_steps; i += chase_unroll) {
#pragma unroll
    for (int k = 0; k < chase_unroll; ++k) asm volatile("fma.rn.f32 %0, %0, %0, %0;" : "+f"(x));
  }
  *registers = {static_cast<std::uint64_t>(clock64() - start), nanoseconds() - start_ns};
  std::uint32_t at = next[0];
  for (int i = 0; i < words; ++i) at = shared_load(at);
  start_ns = nanoseconds();
  start = clock64();
  for (int i = 0; i < on_chip_steps; i += chase_unroll) {
#pragma unroll
    for (int k = 0; k < chase_unroll; ++k) at = shared_load(at);
  }
  *shared = {static_cast<std::uint64_t>(clock64() - start), nanoseconds() - start_ns};
  keep(at + __float_as_uint(x), sink);
}

__device__ std::uint32_t folded(const uint4& v) { return v.x ^ v.y ^ v.z ^ v.w; }

// Data that L2 holds are read whole by every SM. Blocks begin at places spread over them: a line comes to an SM again only after
// all of the data were read by somebody. Of larger data each SM has its part, so that no SM finds in L2 what another has read.
__global__ void level_read_kernel(const uint4* data, std::size_t chunks, std::size_t rounds, bool in_parts, std::uint32_t* sink) {
  constexpr int unroll = 8;
  const std::size_t step = in_parts ? gridDim.x : 1;
  std::size_t chunk = in_parts ? blockIdx.x : chunks * blockIdx.x / gridDim.x;
  std::uint32_t sum = 0;
  for (std::size_t round = 0; round < rounds; round += unroll) {
#pragma unroll
    for (int k = 0; k < unroll; ++k) {
      sum ^= folded(data[chunk * read_threads + threadIdx.x]);
      chunk += step;
      if (chunk >= chunks) chunk -= chunks;
    }
  }
  keep(sum, sink);
}

unsigned blocks_for(std::size_t count) { return static_cast<unsigned>((count + block_threads - 1) / block_threads); }

}  // namespace

void launch_link(void* base, const std::uint64_t* order, std::size_t count, Links links, cudaStream_t stream) {
  link_kernel<<<blocks_for(count), block_threads, 0, stream>>>(static_cast<char*>(base), order, count, links == Links::self);
  check(cudaGetLastError());
}

void launch_touch(const void* base, const std::uint64_t* order, std::size_t count, std::uint32_t* sink, cudaStream_t stream) {
  constexpr unsigned most_blocks = 128;
  touch_kernel<<<std::min(blocks_for(count), most_blocks), block_threads, 0, stream>>>(static_cast<const char*>(base), order,
                                                                                       count, sink);
  check(cudaGetLastError());
}

void launch_chase(const void* first, std::size_t warm, std::size_t steps, bool through_l1, ChaseTime* time, cudaStream_t stream) {
  const auto address = reinterpret_cast<std::uint64_t>(first);
  // All of the memory that L1 and shared memory divide, as far as the driver gives it to L1.
  check(cudaFuncSetAttribute(chase_kernel<true>, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxL1));
  if (through_l1) chase_kernel<true><<<1, 1, 0, stream>>>(address, warm, steps, time);
  else chase_kernel<false><<<1, 1, 0, stream>>>(address, warm, steps, time);
  check(cudaGetLastError());
}

void launch_line_latencies(const void* base, const std::uint64_t* order, std::size_t count, float* cycles, cudaStream_t stream) {
  line_latencies_kernel<<<1, 1, 0, stream>>>(static_cast<const char*>(base), order, count, cycles);
  check(cudaGetLastError());
}

void launch_on_chip_chase(ChaseTime* registers, ChaseTime* shared, std::uint32_t* sink, cudaStream_t stream) {
  on_chip_chase_kernel<<<1, 1, 0, stream>>>(registers, shared, sink);
  check(cudaGetLastError());
}

double launch_level_read(const void* data, std::size_t bytes, int sms, std::size_t l2_bytes, std::uint32_t* sink,
                         cudaStream_t stream) {
  // Small data often enough that a launch is nothing beside it; large ones once.
  constexpr std::size_t least_bytes = std::size_t{16} << 20;
  const std::size_t chunks = bytes / level_chunk_bytes;
  const bool in_parts = bytes > l2_bytes;
  const std::size_t chunks_each =
      in_parts ? chunks / static_cast<std::size_t>(sms) : std::max(bytes, least_bytes) / level_chunk_bytes;
  const std::size_t rounds = (chunks_each + 7) / 8 * 8;
  check(cudaFuncSetAttribute(level_read_kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxL1));
  level_read_kernel<<<static_cast<unsigned>(sms), read_threads, 0, stream>>>(static_cast<const uint4*>(data), chunks, rounds,
                                                                             in_parts, sink);
  check(cudaGetLastError());
  return static_cast<double>(rounds) * level_chunk_bytes * sms;
}

}  // namespace aisp::peak
