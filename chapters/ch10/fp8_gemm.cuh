// SPDX-License-Identifier: Apache-2.0
// What fp8_matmul adds to the kernels of multicast_gemm.cuh and pingpong_gemm.cuh: operands that both lie along K, in bf16 or
// e4m3; sums that leave the tensor cores after every stage; and the widening of e4m3 to bf16.
#pragma once
#include "multicast_gemm.cuh"
#include "pingpong_gemm.cuh"

#include <aisp/device/wgmma_fp8.cuh>

#include <cuda_bf16.h>
#include <cuda_fp8.h>

namespace aisp::ch10::fp8_gemm {

using multicast_gemm::bf16, multicast_gemm::Cursor;
using e4m3 = __nv_fp8_e4m3;
constexpr int row_bytes = 128;  // of K: a stage's
// As static quantization leaves them: one number for each operand, known before.
constexpr float x_scale = 0.0137f, w_scale = 0.00071f;

template <class Element>
inline CUtensorMap operand_map(const Element* data, std::size_t rows, std::size_t k, unsigned tile_rows) {
  constexpr auto type = sizeof(Element) == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return matrix_map(type, sizeof(Element), data, rows, k, tile_rows, row_bytes / sizeof(Element));
}

// B[n][k], the only way in which FP8 products take it.
template <class Element_>
struct AlongK {
  using Element = Element_;
  static constexpr int tile_k = row_bytes / sizeof(Element);

  static __device__ __forceinline__ void load_b_multicast(void* to, const CUtensorMap* b, int n, int k, std::uint64_t* full,
                                                          std::uint16_t blocks) {
    device::tensor_load_2d_multicast(to, b, k, n, full, blocks);
  }
  static __device__ __forceinline__ std::uint64_t b_operand(const Element* b) { return device::operand(b); }
  static constexpr unsigned b_step_bytes = 32;

  template <int count>
  static __device__ __forceinline__ void multiply(float (&sums)[count], std::uint64_t a, std::uint64_t b, bool add) {
    if constexpr (sizeof(Element) == 2) device::wgmma_m64n256k16(sums, a, b, add);
    else if constexpr (count == 64) device::wgmma_m64n128k32_e4m3(sums, a, b, add);
    else device::wgmma_m64n192k32_e4m3(sums, a, b, add);
  }
};

// Tiles of 128 x 192 in e4m3: 2752 of them are 20.8 rounds on 132 SMs, of which nearly nothing is idle, where 128 x 256 leaves
// half of its 16th. And a thread's registers hold 96 sums twice; 256 columns in two halves fit, too, but read A twice, and adding
// up then costs 12 %. With four stages it costs 7 %, since a stage is held until its products are done.
using WideRing = wgmma_gemm::Ring<multicast_gemm::tile_m, 256, 4, AlongK<bf16>>;
using WideStore = multicast_gemm::TmaStore<2>;
using Ring = wgmma_gemm::Ring<multicast_gemm::tile_m, 192, 5, AlongK<e4m3>>;
using Store = multicast_gemm::TmaStore<1>;
constexpr int band = 16;  // rows of tiles
// In the ping-pong a warpgroup has a whole tile to itself: 128 sums a thread, too many for a second set.
using PingpongRing = wgmma_gemm::Ring<multicast_gemm::tile_m, 128, 6, AlongK<e4m3>>;
using PingpongStore = multicast_gemm::TmaStore<2>;
constexpr int pingpong_band = 8;

// Each stage's sums are added to others in fp32. While a warpgroup adds, the other's products keep the tensor cores busy.
struct Promoted {
  template <class R, class Free>
  static __device__ __forceinline__ void multiply(R& ring, Cursor<R>& at, int first_row, int steps, float (&sums)[R::tile_n / 2],
                                                  const Free& free) {
#pragma unroll
    for (float& sum : sums) sum = 0;
    for (int step = 0; step < steps; ++step) {
      float stage_sums[R::tile_n / 2];
      device::barrier_wait(&ring.full[at.stage], at.phase);
      device::wgmma_touch(stage_sums);
      device::wgmma_fence();
      wgmma_gemm::multiply_stage(ring, at.stage, first_row, stage_sums, false);
      device::wgmma_commit();
      device::wgmma_wait<0>();
      device::wgmma_touch(stage_sums);
      free(at.stage);
#pragma unroll
      for (int i = 0; i < R::tile_n / 2; ++i) sums[i] += stage_sums[i];
      at.next();
    }
  }
};

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

}  // namespace aisp::ch10::fp8_gemm
