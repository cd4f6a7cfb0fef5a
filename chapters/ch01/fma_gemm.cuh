// SPDX-License-Identifier: Apache-2.0
// A product on CUDA cores, C = A B, row-major, n x n with n a multiple of 128. What lies in memory may be fp32 or bf16; what is
// multiplied and added is fp32, by the same instructions for both.
#pragma once
#include <cuda_bf16.h>
#include <aisp/device/vector.cuh>

#include <cstddef>

namespace aisp::ch01::fma_gemm {

constexpr int threads = 256, side = 128, depth = 16;  // a block makes 128 x 128 outputs, 16 values of k at a time
constexpr int per_load = 8;                           // neighbours of A or B that a thread brings for a step: 2048 / 256
constexpr int pitch = side + 4;

// Eight neighbouring elements, as they are stored and as they are multiplied.
template <class Stored>
struct Eight {
  using Piece = device::Vector16<Stored>;
  static constexpr int pieces = per_load / Piece::size();
  Piece stored[pieces];

  __device__ void load(const Stored* from) {
#pragma unroll
    for (int i = 0; i < pieces; ++i) stored[i] = reinterpret_cast<const Piece*>(from)[i];
  }
  __device__ float operator[](int i) const { return static_cast<float>(stored[i / Piece::size()][i % Piece::size()]); }
};

struct Slab {
  float a[depth][pitch], b[depth][pitch];  // A transposed, so that a thread reads neighbouring rows with one load
};

template <class Stored>
__device__ inline void put(Slab& slab, const Eight<Stored>& a, const Eight<Stored>& b) {
  const int thread = threadIdx.x;
#pragma unroll
  for (int i = 0; i < per_load; ++i) slab.a[thread % 2 * per_load + i][thread / 2] = a[i];
  float* const to = &slab.b[thread / 16][thread % 16 * per_load];
#pragma unroll
  for (int i = 0; i < per_load; i += 4) *reinterpret_cast<float4*>(to + i) = make_float4(b[i], b[i + 1], b[i + 2], b[i + 3]);
}

// A thread makes four times 4 x 4 outputs, at rows and columns 4 (thread / 16) and 4 (thread % 16) and 64 further on. The next
// slab is on its way from memory while this one is multiplied.
template <class Stored>
static __global__ __launch_bounds__(threads, 2) void fma_kernel(const Stored* a, const Stored* b, float* c, int n) {
  __shared__ __align__(16) Slab slabs[2];
  const int thread = threadIdx.x, row = thread / 16 * 4, column = thread % 16 * 4;
  const std::size_t top = std::size_t{blockIdx.y} * side, left = std::size_t{blockIdx.x} * side;
  const Stored* from_a = a + (top + thread / 2) * n + thread % 2 * per_load;
  const Stored* from_b = b + std::size_t(thread / 16) * n + left + thread % 16 * per_load;
  Eight<Stored> next_a, next_b;
  next_a.load(from_a);
  next_b.load(from_b);
  put(slabs[0], next_a, next_b);

  float sums[8][8] = {};
  for (int k = 0, present = 0; k < n; k += depth, present ^= 1) {
    __syncthreads();  // this slab is written, and the other one has been read by all
    const bool more = k + depth < n;
    if (more) {
      next_a.load(from_a += depth);
      next_b.load(from_b += std::size_t{depth} * n);
    }
    const Slab& slab = slabs[present];
#pragma unroll 2  // more needs more than 128 registers, and two blocks no longer fit an SM
    for (int i = 0; i < depth; ++i) {
      float x[8], y[8];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<float4*>(x + half * 4) = *reinterpret_cast<const float4*>(&slab.a[i][row + half * 64]);
        *reinterpret_cast<float4*>(y + half * 4) = *reinterpret_cast<const float4*>(&slab.b[i][column + half * 64]);
      }
#pragma unroll
      for (int r = 0; r < 8; ++r)
#pragma unroll
        for (int s = 0; s < 8; ++s) sums[r][s] = fmaf(x[r], y[s], sums[r][s]);
    }
    if (more) put(slabs[present ^ 1], next_a, next_b);
  }

#pragma unroll
  for (int r = 0; r < 8; ++r)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      *reinterpret_cast<float4*>(c + (top + row + r / 4 * 64 + r % 4) * n + left + column + half * 64) =
          make_float4(sums[r][half * 4], sums[r][half * 4 + 1], sums[r][half * 4 + 2], sums[r][half * 4 + 3]);
}

template <class Stored>
void multiply(cudaStream_t stream, const Stored* a, const Stored* b, float* c, std::size_t n) {
  const auto blocks = static_cast<unsigned>(n / side);
  fma_kernel<<<dim3{blocks, blocks}, threads, 0, stream>>>(a, b, c, static_cast<int>(n));
}

}  // namespace aisp::ch01::fma_gemm
