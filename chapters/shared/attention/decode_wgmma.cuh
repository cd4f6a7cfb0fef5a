// SPDX-License-Identifier: Apache-2.0
// Attention of one decoding step on e4m3 wgmma (sm_90a): 64 tokens are the rows of the first product and 64 dimensions those of
// the second, with the heads of a group as the 8 columns of both. FP8 operands lie along K, so that the cache has its values
// transposed, in pages of 128 tokens. A warp keeps a ring of pages full by TMA; queries and weights become e4m3 in the block.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <aisp/device/fence.cuh>
#include <aisp/device/mbarrier.cuh>
#include <aisp/device/tma.cuh>
#include <aisp/device/warpgroup.cuh>
#include <aisp/device/wgmma_products.cuh>

#include "decode.cuh"

namespace aisp::attention {

constexpr int page_tokens = 128, page_head = 128;  // what a swizzled row of 128 e4m3 holds, of either
constexpr int page_stages = 3, page_threads = decode_threads + 32;
constexpr float largest_e4m3 = 448, least_maximum = 1e-20f;

// Keys [page][token][dimension] and values [page][dimension][token], both as rows of 128 bytes, a box of 128 rows a page. What
// lies after a sequence's last token must not be NaN.
struct TransposedCache {
  CUtensorMap k, v;
  const float *k_scales, *v_scales;
  int heads, pages;  // of KV heads; of a head of a sequence
};
template <class Out>
struct TransposedDecode {
  const bf16* q;  // [sequence][head][128]
  const int* lengths;
  int heads;  // of queries
  float scale_log2;
  Out* o;
};

struct PageRing {
  alignas(1024) std::uint8_t k[page_stages][page_tokens * page_head], v[page_stages][page_tokens * page_head];
  alignas(1024) std::uint8_t q[8 * page_head], p[2 * 8 * page_tokens];  // of p, what rounding left of it after it
  float q_scales[8], maxima[decode_warps][8], sums[decode_warps][8];
  std::uint64_t full[page_stages], empty[page_stages];
};
// Returns the place of byte `column` of row `row` in the 128-byte swizzle.
__device__ __forceinline__ int swizzled(int row, int column) { return row * 128 + (column / 16 ^ row % 8) * 16 + column % 16; }

// d = A B for the two blocks of 64 rows of A and 8 or 16 columns of B.
template <int count>
__device__ __forceinline__ void multiply_page(float (&d)[2][count], const std::uint8_t* a, const std::uint8_t* b) {
  const std::uint64_t from_a = device::operand(a), from_b = device::operand(b);
  device::wgmma_touch(d[0]);
  device::wgmma_touch(d[1]);
  device::wgmma_fence();
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int block = 0; block < 2; ++block)
      device::wgmma<device::Operands::e4m3>(d[block], device::advance(from_a, block * 64 * 128 + i * 32),
                                            device::advance(from_b, i * 32), i > 0);
  device::wgmma_commit();
  device::wgmma_wait<0>();
  device::wgmma_touch(d[0]);
  device::wgmma_touch(d[1]);
}

__device__ __forceinline__ float2 floats_of(unsigned pair) {
  const unsigned both = device::widen_e4m3(pair);
  return __half22float2(reinterpret_cast<const __half2&>(both));
}

// The group's queries as e4m3, each with a scale of its own; by the four warps.
template <int group>
__device__ __forceinline__ void narrow_queries(PageRing& ring, const bf16* q, int warp, int lane) {
  for (int row = warp; row < 8; row += decode_warps) {
    float x[4] = {}, maximum = least_maximum;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (row < group) x[i] = widened(q[row * page_head + lane * 4 + i]);
      maximum = fmaxf(maximum, fabsf(x[i]));
    }
#pragma unroll
    for (int of = 1; of < 32; of *= 2) maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, of));
    const float scale = maximum / largest_e4m3;
    *reinterpret_cast<unsigned*>(ring.q + swizzled(row, lane * 4)) =
        device::narrow_e4m3(x[0] / scale, x[1] / scale) | device::narrow_e4m3(x[2] / scale, x[3] / scale) << 16;
    if (lane == 0) ring.q_scales[row] = scale;
  }
}

// blockIdx.x: the KV head; blockIdx.y: the sequence, which has a token.
template <int group, class Out>
__global__ __launch_bounds__(page_threads) void page_decode_kernel(const __grid_constant__ TransposedCache cache,
                                                                   const __grid_constant__ TransposedDecode<Out> work) {
  static_assert(group <= 8);
  extern __shared__ __align__(1024) unsigned char memory[];
  PageRing& ring = *reinterpret_cast<PageRing*>(memory);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const int sequence = static_cast<int>(blockIdx.y), kv_head = static_cast<int>(blockIdx.x), length = work.lengths[sequence];
  const int pages = (length + page_tokens - 1) / page_tokens;
  const std::size_t first_row = static_cast<std::size_t>(sequence) * work.heads + kv_head * group;
  if (threadIdx.x == 0) {
    for (int i = 0; i < page_stages; ++i)
      device::barrier_init(&ring.full[i], 1), device::barrier_init(&ring.empty[i], decode_warps);
    device::fence_barrier_init();
  }
  if (warp < decode_warps) narrow_queries<group>(ring, work.q + first_row * page_head, warp, lane);
  device::fence_proxy_async_shared();
  __syncthreads();

  if (warp == decode_warps) {
    if (lane != 0) return;
    const int first = (sequence * cache.heads + kv_head) * cache.pages;
    for (int page = 0; page < pages; ++page) {
      const int slot = page % page_stages;
      device::barrier_wait(&ring.empty[slot], (page / page_stages + 1) % 2);
      device::barrier_arrive_expect(&ring.full[slot], 2 * page_tokens * page_head);
      device::tensor_load_2d(ring.k[slot], &cache.k, 0, (first + page) * page_tokens, &ring.full[slot]);
      device::tensor_load_2d(ring.v[slot], &cache.v, 0, (first + page) * page_head, &ring.full[slot]);
    }
    return;
  }
  // Weights are kept 2^8 times larger, relative to the exact maximum: e4m3 then has them down to 2^-17. A weight is rounded by up
  // to 2^-4; what is left of it, 2^4 times larger, goes into eight columns of its own.
  constexpr float raised_by = 8, rest_by = 16;
  const float scale[2] = {work.scale_log2 * cache.k_scales[kv_head] * ring.q_scales[2 * t],
                          work.scale_log2 * cache.k_scales[kv_head] * ring.q_scales[2 * t + 1]};
  float maximum[2] = {-infinity, -infinity}, sum[2] = {0, 0}, values[2][4] = {};
  for (int page = 0; page < pages; ++page) {
    const int slot = page % page_stages;
    device::barrier_wait(&ring.full[slot], page / page_stages % 2);
    float scores[2][4];
    multiply_page(scores, ring.k[slot], ring.q);
    float highest[2] = {-infinity, -infinity};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& score = scores[i / 4][i % 4];
      score *= scale[i % 2];
      if (page * page_tokens + i / 4 * 64 + warp * 16 + i / 2 % 2 * 8 + g >= length) score = -infinity;
      highest[i % 2] = fmaxf(highest[i % 2], score);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int of = 4; of < 32; of *= 2) highest[i] = fmaxf(highest[i], __shfl_xor_sync(~0u, highest[i], of));
      if (g == 0) ring.maxima[warp][2 * t + i] = highest[i];
    }
    device::named_barrier_sync(1, decode_threads);  // and nobody reads the last page's weights any more
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float raised = maximum[i];
#pragma unroll
      for (int w = 0; w < decode_warps; ++w) raised = fmaxf(raised, ring.maxima[w][2 * t + i]);
      factor[i] = device::exp2_approximate(maximum[i] - raised);  // a page has a token, so that `raised` is a number
      maximum[i] = raised;
      sum[i] *= factor[i];
    }
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const float x[2] = {device::exp2_approximate(scores[i / 4][i % 4] - maximum[0] + raised_by),
                          device::exp2_approximate(scores[i / 4][i % 4 + 1] - maximum[1] + raised_by)};
      const unsigned both = device::narrow_e4m3(x[0], x[1]);
      const float2 rounded = floats_of(both);
      const unsigned rest = device::narrow_e4m3((x[0] - rounded.x) * rest_by, (x[1] - rounded.y) * rest_by);
      sum[0] += x[0], sum[1] += x[1];
      const int token = i / 4 * 64 + warp * 16 + i / 2 % 2 * 8 + g;
      ring.p[swizzled(2 * t, token)] = static_cast<std::uint8_t>(both);
      ring.p[swizzled(2 * t + 1, token)] = static_cast<std::uint8_t>(both >> 8);
      ring.p[swizzled(8 + 2 * t, token)] = static_cast<std::uint8_t>(rest);
      ring.p[swizzled(8 + 2 * t + 1, token)] = static_cast<std::uint8_t>(rest >> 8);
    }
    device::fence_proxy_async_shared();
    device::named_barrier_sync(1, decode_threads);
    float of_page[2][8];
    multiply_page(of_page, ring.v[slot], ring.p);
    if (lane == 0) device::barrier_arrive(&ring.empty[slot]);
      // Sums over many pages would lose bits inside the tensor cores.
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float(&of_rows)[8] = of_page[i / 4];
      values[i / 4][i % 4] = fmaf(values[i / 4][i % 4], factor[i % 2], fmaf(of_rows[4 + i % 4], 1 / rest_by, of_rows[i % 4]));
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int of = 4; of < 32; of *= 2) sum[i] += __shfl_xor_sync(~0u, sum[i], of);
    if (g == 0) ring.sums[warp][2 * t + i] = sum[i];
  }
  device::named_barrier_sync(1, decode_threads);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = 2 * t + i;
    if (row >= group) continue;
    float whole = 0;
    for (int w = 0; w < decode_warps; ++w) whole += ring.sums[w][row];
    const float by = reciprocal(whole) * cache.v_scales[kv_head];
#pragma unroll
    for (int n = 0; n < 4; ++n)
      work.o[(first_row + row) * page_head + n / 2 * 64 + warp * 16 + n % 2 * 8 + g] =
          __float2bfloat16_rn(values[n / 2][n % 2 * 2 + i] * by);
  }
}

}  // namespace aisp::attention
