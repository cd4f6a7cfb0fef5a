// SPDX-License-Identifier: Apache-2.0
// The kernels of fp8_matmul: a persistent, warp-specialized product of operands that lie along K, in bf16 or e4m3, and the
// widening of e4m3 to bf16.
#pragma once
#include "wgmma_gemm.cuh"

#include <aisp/device/warpgroup.cuh>
#include <aisp/device/wgmma_fp8.cuh>

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <type_traits>

namespace aisp::ch10::fp8_gemm {

using bf16 = __nv_bfloat16;
using e4m3 = __nv_fp8_e4m3;
using wgmma_gemm::warpgroup_threads;
using Ring = wgmma_gemm::Ring<128, 256, 4>;  // in bytes: both operands lie along K in rows of 128
using Cursor = wgmma_gemm::Cursor<Ring>;
constexpr int row_bytes = 128, step_bytes = 32;  // of K: a stage's, one product's
constexpr int consumers = 2, threads = (consumers + 1) * warpgroup_threads, count = Ring::tile_n / 2;
// As static quantization leaves them: one number for each operand, known before.
constexpr float x_scale = 0.0137f, w_scale = 0.00071f;

template <class Element>
inline CUtensorMap operand_map(const Element* data, std::size_t rows, std::size_t k, unsigned tile_rows) {
  constexpr auto type = sizeof(Element) == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return matrix_map(type, sizeof(Element), data, rows, k, tile_rows, row_bytes / sizeof(Element));
}

// Tiles in bands of 16 rows, each walked column by column: what runs at the same time is about square, and shares its operands
// in L2.
struct Tiles {
  int rows, columns;
  __device__ int count() const { return rows * columns; }
  __device__ int2 operator[](int tile) const {  // x: column, y: row
    constexpr int band = 16;
    const int first_row = tile / (band * columns) * band, height = min(band, rows - first_row),
              in_band = tile - first_row * columns;
    return make_int2(in_band / height, first_row + in_band % height);
  }
};

__device__ __forceinline__ std::uint64_t x_rows(Ring& ring, int stage, int first_row) {
  return device::operand(reinterpret_cast<unsigned char*>(ring.a[stage]) + first_row * row_bytes);
}
__device__ __forceinline__ std::uint64_t w_rows(Ring& ring, int stage, int first_row) {
  return device::operand(reinterpret_cast<unsigned char*>(ring.b[stage]) + first_row * row_bytes);
}

// How a warpgroup multiplies its 64 rows of a tile: sums in the tensor cores from the first step to the last. One group of
// products is kept in flight.
template <class Element_>
struct InTensorCores {
  using Element = Element_;
  static __device__ __forceinline__ void multiply(Ring& ring, Cursor& at, int warpgroup, int steps, float (&sums)[count]) {
    const bool leader = threadIdx.x % warpgroup_threads == 0;
    int previous = -1;
    for (int step = 0; step < steps; ++step) {
      device::barrier_wait(&ring.full[at.stage], at.phase);
      const std::uint64_t x = x_rows(ring, at.stage, warpgroup * 64), w = w_rows(ring, at.stage, 0);
      device::wgmma_touch(sums);
      device::wgmma_fence();
#pragma unroll
      for (int i = 0; i < row_bytes; i += step_bytes) {
        const bool add = step > 0 || i > 0;
        if constexpr (sizeof(Element) == 1)
          device::wgmma_m64n256k32_e4m3(sums, device::advance(x, i), device::advance(w, i), add);
        else device::wgmma_m64n256k16(sums, device::advance(x, i), device::advance(w, i), add);
      }
      device::wgmma_commit();
      device::wgmma_wait<1>();
      if (leader && previous >= 0) device::barrier_arrive(&ring.empty[previous]);
      previous = at.stage;
      at.next();
    }
    device::wgmma_wait<0>();
    device::wgmma_touch(sums);
    if (leader) device::barrier_arrive(&ring.empty[previous]);
  }
};

// Each stage's sums are added to others in fp32. The tile's columns are taken in two halves, so that 128 + 64 registers of sums
// suffice; while a warpgroup adds, the other's products keep the tensor cores busy.
struct Promoted {
  using Element = e4m3;
  static __device__ __forceinline__ void multiply(Ring& ring, Cursor& at, int warpgroup, int steps, float (&sums)[count]) {
    const bool leader = threadIdx.x % warpgroup_threads == 0;
#pragma unroll
    for (int i = 0; i < count; ++i) sums[i] = 0;
    for (int step = 0; step < steps; ++step) {
      device::barrier_wait(&ring.full[at.stage], at.phase);
      const std::uint64_t x = x_rows(ring, at.stage, warpgroup * 64);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint64_t w = w_rows(ring, at.stage, half * 128);
        float part[count / 2];
        device::wgmma_touch(part);
        device::wgmma_fence();
#pragma unroll
        for (int i = 0; i < row_bytes; i += step_bytes)
          device::wgmma_m64n128k32_e4m3(part, device::advance(x, i), device::advance(w, i), i > 0);
        device::wgmma_commit();
        device::wgmma_wait<0>();
        device::wgmma_touch(part);
        if (half == 1 && leader) device::barrier_arrive(&ring.empty[at.stage]);
#pragma unroll
        for (int i = 0; i < count / 2; ++i) sums[half * (count / 2) + i] += part[i];
      }
      at.next();
    }
  }
};

// One block per SM. One thread loads, two warpgroups multiply 64 rows each; the ring runs on from tile to tile.
template <class How>
static __global__ __launch_bounds__(threads, 1) void product_kernel(const __grid_constant__ CUtensorMap x,
                                                                    const __grid_constant__ CUtensorMap w, bf16* y, int steps,
                                                                    Tiles tiles, float scale) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Ring& ring = *reinterpret_cast<Ring*>(memory);
  if (threadIdx.x == 0) ring.init(consumers);
  __syncthreads();

  Cursor at;
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / warpgroup_threads, 0);
  if (warpgroup == consumers) {
    device::give_up_registers<40>();
    if (threadIdx.x % warpgroup_threads != 0) return;
    for (int tile = static_cast<int>(blockIdx.x); tile < tiles.count(); tile += static_cast<int>(gridDim.x)) {
      const int2 place = tiles[tile];
      for (int step = 0; step < steps; ++step) {
        constexpr int depth = row_bytes / sizeof(typename How::Element);
        device::barrier_wait(&ring.empty[at.stage], at.phase ^ 1);
        device::barrier_arrive_expect(&ring.full[at.stage], Ring::stage_bytes);
        device::tensor_load_2d(ring.a[at.stage], &x, step * depth, place.y * Ring::tile_m, &ring.full[at.stage]);
        device::tensor_load_2d(ring.b[at.stage], &w, step * depth, place.x * Ring::tile_n, &ring.full[at.stage]);
        at.next();
      }
    }
    return;
  }
  device::take_registers<232>();
  float sums[count];
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles.count(); tile += static_cast<int>(gridDim.x)) {
    How::multiply(ring, at, warpgroup, steps, sums);
    const int2 place = tiles[tile];
#pragma unroll
    for (float& sum : sums) sum *= scale;
    wgmma_gemm::store_sums(sums, y, static_cast<std::size_t>(tiles.columns) * Ring::tile_n,
                           place.y * Ring::tile_m + warpgroup * 64, place.x * Ring::tile_n);
  }
}

__device__ __forceinline__ unsigned widen(unsigned pair) {
  const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
  const float2 values = __half22float2(halves);
  return device::narrow_bf16(values.x, values.y);
}

// Both operands in one kernel; e4m3 has fewer bits than bf16 in every respect, so nothing is rounded. 16 elements a thread.
static __global__ __launch_bounds__(256) void widen_kernel(const uint4* x, uint4* wide_x, std::size_t x_chunks, const uint4* w,
                                                           uint4* wide_w, std::size_t w_chunks) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < x_chunks + w_chunks;
       i += std::size_t{gridDim.x} * blockDim.x) {
    const bool first = i < x_chunks;
    const std::size_t chunk = first ? i : i - x_chunks;
    const uint4 v = first ? x[chunk] : w[chunk];
    uint4* const to = (first ? wide_x : wide_w) + 2 * chunk;
    to[0] = make_uint4(widen(v.x & 0xFFFF), widen(v.x >> 16), widen(v.y & 0xFFFF), widen(v.y >> 16));
    to[1] = make_uint4(widen(v.z & 0xFFFF), widen(v.z >> 16), widen(v.w & 0xFFFF), widen(v.w >> 16));
  }
}

inline unsigned multiprocessors() {
  int device = 0, found = 0;
  check(cudaGetDevice(&device));
  check(cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, device));
  return static_cast<unsigned>(found);
}

}  // namespace aisp::ch10::fp8_gemm
