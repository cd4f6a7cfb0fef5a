// SPDX-License-Identifier: Apache-2.0
#include "peak/kernels.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <aisp/check.hpp>

#include <algorithm>
#include <stdexcept>

namespace aisp::peak {

using machine::NumberType;

namespace {

// One 16-byte element a thread, in blocks small enough that an SM never waits for the last warp of a large one: on an H200 blocks
// of 256 read 4.57 TB/s where blocks of 1024 read 3.97, and copy 4.25 where those copy 4.10; no persistent loop and no cache hint
// beats it.
constexpr unsigned block_threads = 256;
constexpr unsigned on_chip_threads = 1024;  // of loops that never wait for device memory

__device__ std::size_t global_thread() { return static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; }

__device__ std::size_t all_threads() { return static_cast<std::size_t>(gridDim.x) * blockDim.x; }

__device__ std::uint32_t mixed(std::uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

template <class T>
__device__ T random_value(std::uint32_t bits) {
  return static_cast<T>(static_cast<float>(static_cast<std::int32_t>(bits)) * 0x1p-31f);
}
template <>
__device__ std::int8_t random_value<std::int8_t>(std::uint32_t bits) {
  return static_cast<std::int8_t>(bits & 0xff);
}

template <class T>
__global__ void fill_kernel(T* data, std::size_t count, std::uint32_t seed) {
  const std::size_t i = global_thread();
  if (i < count) data[i] = random_value<T>(mixed(static_cast<std::uint32_t>(i) ^ mixed(seed)));
}

template <class T>
void fill(void* data, std::size_t count, std::uint32_t seed, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((count + block_threads - 1) / block_threads);
  fill_kernel<<<blocks, block_threads, 0, stream>>>(static_cast<T*>(data), count, seed);
}

__device__ std::uint32_t folded(const uint4& v) { return v.x ^ v.y ^ v.z ^ v.w; }

// The value is improbable, but the compiler cannot know that it never comes.
__device__ void keep(std::uint32_t value, std::uint32_t* sink) {
  if (value == 0x9e3779b9u) *sink = value;
}

__global__ void read_kernel(const uint4* from, std::uint32_t* sink) { keep(folded(from[global_thread()]), sink); }

__global__ void write_kernel(uint4* to) { to[global_thread()] = make_uint4(1, 2, 3, 4); }

__global__ void copy_kernel(const uint4* from, uint4* to) { to[global_thread()] = from[global_thread()]; }

__global__ void triad_kernel(const float4* b, const float4* c, float4* a) {
  const std::size_t i = global_thread();
  const float4 x = b[i], y = c[i];
  a[i] = make_float4(x.x + 3 * y.x, x.y + 3 * y.y, x.z + 3 * y.z, x.w + 3 * y.w);
}

unsigned blocks_for(std::size_t bytes) { return static_cast<unsigned>(bytes / (block_threads * sizeof(uint4))); }

// ld.global.cg caches in L2 only.
__global__ void l2_read_kernel(const uint4* data, std::size_t mask, int passes, std::uint32_t* sink) {
  const std::size_t threads = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  std::size_t i = global_thread();
  std::uint32_t sum = 0;
#pragma unroll 8
  for (int pass = 0; pass < passes; ++pass, i += threads) sum ^= folded(__ldcg(&data[i & mask]));
  keep(sum, sink);
}

constexpr int shared_elements = 2048, shared_loads = 8, shared_stride = 128;

// Neighbouring threads read neighbouring 16 bytes, so no bank is asked twice; where they begin moves with every round, so
// that nothing can be kept in registers.
__global__ void shared_read_kernel(int rounds, std::uint32_t* sink) {
  __shared__ uint4 data[shared_elements];
  for (int i = static_cast<int>(threadIdx.x); i < shared_elements; i += static_cast<int>(blockDim.x))
    data[i] = make_uint4(threadIdx.x, rounds, i, 0);
  __syncthreads();
  std::uint32_t sum = 0;
  for (int round = 0; round < rounds; ++round) {
    const uint4* from = &data[(static_cast<int>(threadIdx.x) + round * 32) % on_chip_threads];
#pragma unroll
    for (int k = 0; k < shared_loads; ++k) sum ^= folded(from[k * shared_stride]);
  }
  keep(sum, sink);
}
static_assert(on_chip_threads + (shared_loads - 1) * shared_stride <= shared_elements);

constexpr int chains = 8, fma_threads = 256, fma_blocks_per_sm = 8, fma_unroll = 32;

template <class T>
__global__ void fma_kernel(int rounds, T factor, T* sink) {
  T x[chains];
  for (int k = 0; k < chains; ++k) x[k] = static_cast<T>(threadIdx.x + k) * static_cast<T>(1e-3);
  for (int round = 0; round < rounds; ++round) {
#pragma unroll
    for (int step = 0; step < fma_unroll; ++step)
#pragma unroll
      for (int k = 0; k < chains; ++k) x[k] = x[k] * factor + factor;
  }
  T sum = 0;
  for (int k = 0; k < chains; ++k) sum += x[k];
  if (sum == static_cast<T>(-1)) *sink = sum;
}

template <class T>
double launch_fma(int sms, int rounds, void* sink, cudaStream_t stream) {
  const int blocks = sms * fma_blocks_per_sm;
  fma_kernel<<<blocks, fma_threads, 0, stream>>>(rounds, static_cast<T>(0.5), static_cast<T*>(sink));
  check(cudaGetLastError());
  return 2.0 * chains * fma_unroll * rounds * blocks * fma_threads;
}

__global__ void empty_kernel() {}

constexpr unsigned pattern_blocks = 1024, pattern_threads = 256;

__device__ float hash_of(std::size_t i) { return static_cast<float>((static_cast<std::uint32_t>(i) * 2654435761u) >> 20); }

__global__ void pattern_kernel(float* data, std::size_t count, float rank) {
  for (std::size_t i = global_thread(); i < count; i += all_threads()) data[i] = hash_of(i) + rank;
}

__global__ void count_wrong_kernel(const float* data, std::size_t count, Expected expected, unsigned long long* wrong) {
  unsigned long long found = 0;
  for (std::size_t i = global_thread(); i < count; i += all_threads()) {
    const float value =
        expected.scale * hash_of(expected.first + i % expected.chunk) + expected.offset + static_cast<float>(i / expected.chunk);
    found += data[i] == value ? 0 : 1;  // a NaN is wrong too
  }
  if (found > 0) atomicAdd(wrong, found);
}

}  // namespace

void launch_fill(void* data, NumberType element, std::size_t count, std::uint32_t seed, cudaStream_t stream) {
  switch (element) {
    case NumberType::fp64: fill<double>(data, count, seed, stream); break;
    case NumberType::fp32: fill<float>(data, count, seed, stream); break;
    case NumberType::bf16: fill<__nv_bfloat16>(data, count, seed, stream); break;
    case NumberType::fp16: fill<__half>(data, count, seed, stream); break;
    case NumberType::fp8: fill<__nv_fp8_e4m3>(data, count, seed, stream); break;
    case NumberType::int8: fill<std::int8_t>(data, count, seed, stream); break;
    default: throw std::logic_error{"nothing is filled with such numbers"};
  }
  check(cudaGetLastError());
}

void launch_read(const void* from, std::size_t bytes, std::uint32_t* sink, cudaStream_t stream) {
  read_kernel<<<blocks_for(bytes), block_threads, 0, stream>>>(static_cast<const uint4*>(from), sink);
  check(cudaGetLastError());
}

void launch_write(void* to, std::size_t bytes, cudaStream_t stream) {
  write_kernel<<<blocks_for(bytes), block_threads, 0, stream>>>(static_cast<uint4*>(to));
  check(cudaGetLastError());
}

void launch_copy(const void* from, void* to, std::size_t bytes, cudaStream_t stream) {
  copy_kernel<<<blocks_for(bytes), block_threads, 0, stream>>>(static_cast<const uint4*>(from), static_cast<uint4*>(to));
  check(cudaGetLastError());
}

void launch_triad(const void* b, const void* c, void* a, std::size_t bytes, cudaStream_t stream) {
  triad_kernel<<<blocks_for(bytes), block_threads, 0, stream>>>(static_cast<const float4*>(b), static_cast<const float4*>(c),
                                                                static_cast<float4*>(a));
  check(cudaGetLastError());
}

double launch_l2_read(const void* data, std::size_t bytes, int sms, int passes, std::uint32_t* sink, cudaStream_t stream) {
  const int blocks = 2 * sms;
  l2_read_kernel<<<blocks, on_chip_threads, 0, stream>>>(static_cast<const uint4*>(data), bytes / sizeof(uint4) - 1, passes,
                                                         sink);
  check(cudaGetLastError());
  return static_cast<double>(blocks) * on_chip_threads * passes * sizeof(uint4);
}

double launch_shared_read(int sms, int rounds, std::uint32_t* sink, cudaStream_t stream) {
  const int blocks = 2 * sms;
  shared_read_kernel<<<blocks, on_chip_threads, 0, stream>>>(rounds, sink);
  check(cudaGetLastError());
  return static_cast<double>(blocks) * on_chip_threads * rounds * shared_loads * sizeof(uint4);
}

double launch_fma_fp32(int sms, int rounds, void* sink, cudaStream_t stream) {
  return launch_fma<float>(sms, rounds, sink, stream);
}
double launch_fma_fp64(int sms, int rounds, void* sink, cudaStream_t stream) {
  return launch_fma<double>(sms, rounds, sink, stream);
}

void launch_empty(cudaStream_t stream) {
  empty_kernel<<<1, 1, 0, stream>>>();
  check(cudaGetLastError());
}

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
