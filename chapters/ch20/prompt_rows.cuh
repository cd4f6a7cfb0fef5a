// SPDX-License-Identifier: Apache-2.0
// The element-wise passes of a decoder block over a prompt, one operation each: as a framework runs them that fuses nothing, and
// as Transformers writes RMSNorm and RoPE. Threads move packets of eight bf16.
#pragma once
#include <aisp/launch.hpp>

#include "rows.cuh"

namespace aisp::ch20 {

using shared::bf16, shared::packet;

constexpr unsigned row_threads = 256;

// Rows of packets at equal distances.
struct PacketRows {
  uint4* data;
  unsigned pitch;
  __device__ __forceinline__ uint4& at(unsigned row, unsigned i) const { return data[std::size_t{row} * pitch + i]; }
};
inline PacketRows packets_of(const bf16* data, std::size_t pitch) {
  return {reinterpret_cast<uint4*>(const_cast<bf16*>(data)), static_cast<unsigned>(pitch / packet)};
}

struct Copy {
  __device__ __forceinline__ static float of(float a, float) { return a; }
};
struct Plus {
  __device__ __forceinline__ static float of(float a, float b) { return a + b; }
};
struct Times {
  __device__ __forceinline__ static float of(float a, float b) { return a * b; }
};
struct Silu {
  __device__ __forceinline__ static float of(float a, float) {
    return a * __fdividef(1, 1 + device::exp2_approximate(-shared::log2_e * a));
  }
};
struct SiluTimes {
  __device__ __forceinline__ static float of(float a, float b) { return Silu::of(a, b) * b; }
};
template <class Operation>
__global__ __launch_bounds__(row_threads) void map_rows_kernel(PacketRows a, PacketRows b, PacketRows to, unsigned packets) {
  const unsigned i = blockIdx.x * row_threads + threadIdx.x, row = blockIdx.y;
  if (i >= packets) return;
  float x[packet], y[packet] = {};
  shared::unpack(a.at(row, i), x);
  if (b.data != nullptr) shared::unpack(b.at(row, i), y);
#pragma unroll
  for (int j = 0; j < packet; ++j) x[j] = Operation::of(x[j], y[j]);
  to.at(row, i) = shared::pack(x);
}

inline Grid grid_of_rows(std::size_t rows, std::size_t columns, std::size_t in_a_packet = packet) {
  const auto packets = static_cast<unsigned>(columns / in_a_packet);
  return {.blocks = dim3{(packets + row_threads - 1) / row_threads, static_cast<unsigned>(rows)}, .threads = row_threads};
}
template <class Operation>
void map_rows(cudaStream_t stream, std::size_t rows, std::size_t columns, const PacketRows& a, const PacketRows& b,
              const PacketRows& to) {
  launch_kernel(stream, map_rows_kernel<Operation>, grid_of_rows(rows, columns), a, b, to, columns / packet);
}

// Turns pairs of neighbours by the angles of their row's position, [position][head_size]: cosine and sine of each pair.
__global__ static __launch_bounds__(row_threads) void rotate_rows_kernel(PacketRows from, PacketRows to, const float* angles,
                                                                         const int* positions, unsigned packets,
                                                                         unsigned head_packets) {
  const unsigned i = blockIdx.x * row_threads + threadIdx.x, row = blockIdx.y;
  if (i >= packets) return;
  const float* const turns = angles + (static_cast<std::size_t>(positions[row]) * head_packets + i % head_packets) * packet;
  float x[packet], y[packet];
  shared::unpack(from.at(row, i), x);
#pragma unroll
  for (int j = 0; j < packet; j += 2) {
    y[j] = x[j] * turns[j] - x[j + 1] * turns[j + 1];
    y[j + 1] = x[j + 1] * turns[j] + x[j] * turns[j + 1];
  }
  to.at(row, i) = shared::pack(y);
}

// RMSNorm as written in Transformers: to fp32, its square, the mean, the product with its root, back to bf16, the weight.
__global__ static void widen_rows_kernel(const bf16* from, float* to, std::size_t count) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count / packet) return;
  float x[packet];
  shared::unpack(reinterpret_cast<const uint4*>(from)[i], x);
  reinterpret_cast<float4*>(to)[2 * i] = make_float4(x[0], x[1], x[2], x[3]);
  reinterpret_cast<float4*>(to)[2 * i + 1] = make_float4(x[4], x[5], x[6], x[7]);
}
__global__ static void square_kernel(const float* from, float* to, std::size_t count) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count / 4) return;
  const float4 x = reinterpret_cast<const float4*>(from)[i];
  reinterpret_cast<float4*>(to)[i] = make_float4(x.x * x.x, x.y * x.y, x.z * x.z, x.w * x.w);
}
__global__ static __launch_bounds__(row_threads) void root_kernel(const float* squares, float* roots, unsigned columns,
                                                                  float epsilon) {
  __shared__ float sums[device::largest_block_in_warps];
  const float4* const row = reinterpret_cast<const float4*>(squares + std::size_t{blockIdx.x} * columns);
  float sum = 0;
  for (unsigned i = threadIdx.x; i < columns / 4; i += row_threads) sum += row[i].x + row[i].y + row[i].z + row[i].w;
  sum = device::block_sum(sum, sums);
  if (threadIdx.x == 0) roots[blockIdx.x] = rsqrtf(sum / static_cast<float>(columns) + epsilon);
}
__global__ static __launch_bounds__(row_threads) void scale_rows_kernel(const float* from, const float* roots, float* to,
                                                                        unsigned columns) {
  const unsigned i = blockIdx.x * row_threads + threadIdx.x;
  if (i >= columns / 4) return;
  const std::size_t at = std::size_t{blockIdx.y} * (columns / 4) + i;
  const float4 x = reinterpret_cast<const float4*>(from)[at];
  const float by = roots[blockIdx.y];
  reinterpret_cast<float4*>(to)[at] = make_float4(x.x * by, x.y * by, x.z * by, x.w * by);
}
__global__ static void narrow_rows_kernel(const float* from, bf16* to, std::size_t count) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count / packet) return;
  const float4 a = reinterpret_cast<const float4*>(from)[2 * i], b = reinterpret_cast<const float4*>(from)[2 * i + 1];
  const float x[packet] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  reinterpret_cast<uint4*>(to)[i] = shared::pack(x);
}

// RoPE as written there: neighbours change places, one of them negated, in two kernels; products with cosines and sines; the sum.
__global__ static __launch_bounds__(row_threads) void negate_kernel(PacketRows from, uint2* to, unsigned packets) {
  const unsigned i = blockIdx.x * row_threads + threadIdx.x, row = blockIdx.y;
  if (i >= packets) return;
  const uint4 x = from.at(row, i);
  constexpr unsigned sign = 0x80008000u;
  to[std::size_t{row} * packets + i] = make_uint2(__byte_perm(x.x, x.y, 0x7632) ^ sign, __byte_perm(x.z, x.w, 0x7632) ^ sign);
}
__global__ static __launch_bounds__(row_threads) void stack_kernel(PacketRows from, const uint2* negated, PacketRows to,
                                                                   unsigned packets) {
  const unsigned i = blockIdx.x * row_threads + threadIdx.x, row = blockIdx.y;
  if (i >= packets) return;
  const uint4 x = from.at(row, i);
  const uint2 odd = negated[std::size_t{row} * packets + i];
  to.at(row, i) = make_uint4(__byte_perm(odd.x, x.x, 0x5410), __byte_perm(odd.x, x.y, 0x5432), __byte_perm(odd.y, x.z, 0x5410),
                             __byte_perm(odd.y, x.w, 0x5432));
}
// `side`: 0 for cosines, 1 for sines.
__global__ static __launch_bounds__(row_threads) void times_angles_kernel(PacketRows from, PacketRows to, const float* angles,
                                                                          unsigned side, unsigned packets,
                                                                          unsigned head_packets) {
  const unsigned i = blockIdx.x * row_threads + threadIdx.x, row = blockIdx.y;
  if (i >= packets) return;
  const float* const turns = angles + (std::size_t{row} * head_packets + i % head_packets) * packet + side;
  float x[packet];
  shared::unpack(from.at(row, i), x);
#pragma unroll
  for (int j = 0; j < packet; ++j) x[j] *= turns[j / 2 * 2];
  to.at(row, i) = shared::pack(x);
}

inline Grid grid_of_threads(std::size_t count) {
  return {static_cast<unsigned>((count + row_threads - 1) / row_threads), row_threads};
}
// normed = x / rms(x) * weight, through two spaces as large as x.
inline void norm_step_by_step(cudaStream_t stream, std::size_t rows, std::size_t columns, const bf16* x, const bf16* weight,
                              bf16* normed, float* wide, float* squares, float* roots, float epsilon) {
  const std::size_t count = rows * columns;
  launch_kernel(stream, widen_rows_kernel, grid_of_threads(count / packet), x, wide, count);
  launch_kernel(stream, square_kernel, grid_of_threads(count / 4), wide, squares, count);
  launch_kernel(stream, root_kernel, {static_cast<unsigned>(rows), row_threads}, squares, roots, columns, epsilon);
  launch_kernel(stream, scale_rows_kernel, grid_of_rows(rows, columns, 4), wide, roots, wide, columns);
  launch_kernel(stream, narrow_rows_kernel, grid_of_threads(count / packet), wide, normed, count);
  map_rows<Times>(stream, rows, columns, packets_of(normed, columns), packets_of(weight, 0), packets_of(normed, columns));
}
// RoPE of rows that are their own positions, through `space` of two and a half times their size.
inline void rotate_step_by_step(cudaStream_t stream, std::size_t rows, std::size_t columns, std::size_t head_size,
                                const PacketRows& from, const PacketRows& to, const float* angles, bf16* space) {
  uint2* const negated = reinterpret_cast<uint2*>(space + 2 * rows * columns);
  const PacketRows turned = packets_of(space, columns), straight = packets_of(space + rows * columns, columns);
  const Grid grid = grid_of_rows(rows, columns);
  const auto packets = static_cast<unsigned>(columns / packet), head_packets = static_cast<unsigned>(head_size / packet);
  launch_kernel(stream, negate_kernel, grid, from, negated, packets);
  launch_kernel(stream, stack_kernel, grid, from, negated, turned, packets);
  launch_kernel(stream, times_angles_kernel, grid, from, straight, angles, 0u, packets, head_packets);
  launch_kernel(stream, times_angles_kernel, grid, turned, turned, angles, 1u, packets, head_packets);
  map_rows<Plus>(stream, rows, columns, straight, turned, to);
}

// Interleaves two matrices that lie one below the other: eight rows of the first, the same eight of the second, and so on.
__global__ static __launch_bounds__(row_threads) void interleave_rows_kernel(PacketRows from, PacketRows to, unsigned half,
                                                                             unsigned packets) {
  const unsigned i = blockIdx.x * row_threads + threadIdx.x, row = blockIdx.y;
  if (i < packets) to.at(row, i) = from.at(row / 16 * 8 + row % 8 + (row % 16 < 8 ? 0 : half), i);
}

}  // namespace aisp::ch20
