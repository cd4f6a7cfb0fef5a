// SPDX-License-Identifier: Apache-2.0
// Tensors in fp32 become narrow ones and come back, eight elements a thread.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>

namespace aisp::training {

inline constexpr unsigned cast_threads = 256, cast_packet = 8;  // elements of a thread

template <class T>
struct alignas(16) Packet {
  T values[cast_packet];
  __device__ const T& operator[](unsigned i) const { return values[i]; }
  __device__ T& operator[](unsigned i) { return values[i]; }
};
struct alignas(16) WidePacket {
  float4 halves[2];
  __device__ float operator[](unsigned i) const { return reinterpret_cast<const float*>(halves)[i]; }
  __device__ float& operator[](unsigned i) { return reinterpret_cast<float*>(halves)[i]; }
};

inline unsigned cast_packets(std::size_t elements) { return static_cast<unsigned>(elements / cast_packet); }
inline unsigned cast_blocks(std::size_t elements) { return (cast_packets(elements) + cast_threads - 1) / cast_threads; }

template <class T>
__global__ __launch_bounds__(cast_threads) void narrow_kernel(const WidePacket* __restrict__ from, Packet<T>* __restrict__ to,
                                                              unsigned packets) {
  const unsigned i = blockIdx.x * cast_threads + threadIdx.x;
  if (i >= packets) return;
  const WidePacket x = from[i];
  Packet<T> narrow;
#pragma unroll
  for (unsigned k = 0; k < cast_packet; ++k) narrow[k] = static_cast<T>(x[k]);
  to[i] = narrow;
}

template <class T>
__global__ __launch_bounds__(cast_threads) void widen_kernel(const Packet<T>* __restrict__ from, WidePacket* __restrict__ to,
                                                             unsigned packets) {
  const unsigned i = blockIdx.x * cast_threads + threadIdx.x;
  if (i >= packets) return;
  const Packet<T> narrow = from[i];
  WidePacket x;
#pragma unroll
  for (unsigned k = 0; k < cast_packet; ++k) x[k] = static_cast<float>(narrow[k]);
  to[i] = x;
}

}  // namespace aisp::training
