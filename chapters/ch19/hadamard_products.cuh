// SPDX-License-Identifier: Apache-2.0
// Hadamard transforms of 8192 elements by tensor cores, a row a block: eight of the thirteen steps within a warp, where the result
// of a product lies as the operand of the next must lie, and five behind one exchange through shared memory in bf16.
#pragma once
#include <aisp/device/matrix.cuh>
#include <aisp/device/mbarrier.cuh>
#include <aisp/device/reduce.cuh>
#include <aisp/device/tma.cuh>

#include "hadamard_rows.cuh"

namespace aisp::ch19 {

// The A fragment of the 16 x 16 Hadamard matrix: signs of one.
__device__ __forceinline__ void hadamard_fragment(unsigned (&a)[4]) {
  const unsigned row = device::lane_index() / 4, column = device::lane_index() % 4 * 2;
  const unsigned low = __popc(row & column) & 1, high = __popc(row & (column + 1)) & 1;
  a[0] = a[1] = a[2] = 0x3F803F80u ^ low << 15 ^ high << 31;
  a[3] = a[0] ^ 0x80008000u;  // the quarter in which both numbers have their highest bit
}

// Eight steps over 256 neighbours, of which a lane has eight: bits 0 to 2 of an element's number are within the lane, bits 3 to 7
// the lane. As B operands, the first product takes the bits {0, 3, 4} of their rows from where the fragment has its rows, and bit
// 1 from which of its words it is. Its result has rows where B has columns: the second product finds bits {5, 6, 7} in its rows,
// takes bit 2 with them, and puts every element back where it came from.
__device__ __forceinline__ void tensor_steps(const uint4& from, const unsigned (&hadamard)[4], float* x) {
  float c[2][4] = {}, d[2][4] = {};
  device::mma_bf16(c[0], hadamard, from.x, from.y);
  device::mma_bf16(c[1], hadamard, from.z, from.w);
#pragma unroll
  for (int h = 0; h < 2; ++h) {  // bit 1
    device::mma_bf16(d[h], hadamard, device::narrow_bf16(c[0][2 * h], c[0][2 * h + 1]),
                     device::narrow_bf16(c[1][2 * h], c[1][2 * h + 1]));
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i % 2 + 2 * h + i / 2 * 4] = d[h][i];
  }
}

__device__ __forceinline__ __nv_bfloat162 as_pair(unsigned word) { return reinterpret_cast<const __nv_bfloat162&>(word); }
__device__ __forceinline__ unsigned as_word(__nv_bfloat162 pair) { return reinterpret_cast<const unsigned&>(pair); }

// Numbers of bf16 are one apart between 128 and 256: an addition rounds to the nearest code, and two lie in a word.
constexpr float code_shift = 128;
__device__ __forceinline__ unsigned clamped(unsigned pair) {
  constexpr unsigned most = 0x430F430F;  // code 15 in both halves
  return as_word(__hmin2(as_pair(pair), as_pair(most)));
}
// Elements 0 and 4, 1 and 5, 2 and 6, 3 and 7, as eight codes of four bits.
__device__ __forceinline__ unsigned eight_codes(unsigned a, unsigned b, unsigned c, unsigned d) {
  return ((d * 16 + c) * 16 + b) * 16 + a - 0x43004300u * 0x1111u;
}

template <int stages>
struct Exchange {
  uint4 row[stages > 0 ? stages : 1][stages > 0 ? 1024 : 1];
  uint4 values[1024];
  uint4 codes[256];
  __nv_bfloat16 matrices[2][16][16];
  unsigned maxima[8];
  std::uint64_t came[2];
};

template <bool packed_tail, int stages, int per_sm>
__global__ __launch_bounds__(threads, per_sm) void products_kernel(const uint4* __restrict__ x, uint4* __restrict__ codes,
                                                                   float* __restrict__ scales, float norm, unsigned rows) {
  extern __shared__ __align__(128) unsigned char space[];
  auto& shared = *reinterpret_cast<Exchange<stages>*>(space);
  constexpr bool bulk = stages > 0;
  constexpr unsigned packets = 1024;
  const unsigned t = threadIdx.x, lane = t % 32, warp = t / 32;
  const bool negative = (__popc(t / 16 & t % 16) & 1) != 0;
  shared.matrices[0][t / 16][t % 16] = __float2bfloat16(negative ? -1.0f : 1.0f);
  shared.matrices[1][t / 16][t % 16] = __float2bfloat16(negative ? 1.0f : -1.0f);
  __syncthreads();
  unsigned hadamard[4], opposite[4];
  device::load_matrices(hadamard, device::shared_address(&shared.matrices[0][lane % 16][lane / 16 * 8]));
  device::load_matrices(opposite, device::shared_address(&shared.matrices[1][lane % 16][lane / 16 * 8]));
  const unsigned to = ((lane & 7) ^ (warp & 3)) | (warp & 3) << 3 | lane / 8 << 6 | warp / 4 << 8;
  const unsigned from = ((lane / 8 | (warp & 1) << 2) ^ (lane & 7)) | (lane & 7) << 3 | warp / 2 << 6;
  unsigned* const code_to = reinterpret_cast<unsigned*>(shared.codes) +
                            (lane % 4 | (warp ^ lane / 4) << 2 | lane / 8 << 5 | (lane / 4 & 1) << 8);
  const unsigned code_from = t ^ ((t >> 6 & 1) | (t >> 3 & 3) << 1);

  uint4 loaded[4] = {};
  unsigned row = blockIdx.x;
  unsigned phase = 0, stage = 0;
  const auto prefetch = [&](unsigned of, unsigned to_stage) {
    if constexpr (bulk) {
      if (t == 0 && of < rows) {
        device::barrier_arrive_expect(&shared.came[to_stage], sizeof shared.row[0]);
        device::bulk_load(shared.row[to_stage], x + std::size_t{of} * packets, sizeof shared.row[0], &shared.came[to_stage]);
      }
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (of < rows) loaded[j] = x[std::size_t{of} * packets + t + j * threads];
    }
  };
  if constexpr (bulk) {
    if (t == 0) {
      for (auto& came : shared.came) device::barrier_init(&came, 1);
      device::fence_barrier_init();
    }
    __syncthreads();
  }
  for (unsigned s = 0; s < (bulk ? stages : 1); ++s) prefetch(row + s * gridDim.x, s);
  for (; row < rows; row += gridDim.x) {
    if constexpr (bulk) {
      device::barrier_wait(&shared.came[stage], phase);
#pragma unroll
      for (int j = 0; j < 4; ++j) loaded[j] = shared.row[stage][t + j * threads];
    }
    unsigned exchanged[packet][2];
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      float low[packet], high[packet];
      tensor_steps(loaded[2 * half], hadamard, low);
      tensor_steps(loaded[2 * half + 1], hadamard, high);
#pragma unroll
      for (unsigned i = 0; i < packet; ++i) exchanged[i][half] = device::narrow_bf16(low[i], high[i]);
    }
#pragma unroll
    for (unsigned i = 0; i < packet; i += 2)
      shared.values[(to ^ (i / 4) << 2) | i / 4 << 5 | (i / 2 & 1) << 9] =
          make_uint4(exchanged[i][0], exchanged[i][1], exchanged[i + 1][0], exchanged[i + 1][1]);
    if constexpr (!bulk) prefetch(row + gridDim.x, 0);
    __syncthreads();
    if constexpr (bulk) {
      prefetch(row + stages * gridDim.x, stage);
      if (++stage == stages) stage = 0, phase ^= 1;
    }
    float d[2][4][4] = {};  // [bit 10][bits 0 and 1]
#pragma unroll
    for (unsigned q = 0; q < 4; q += 2) {
      const uint4 lower = shared.values[from | q << 8], upper = shared.values[from | q << 8 | 1 << 8];
#pragma unroll
      for (unsigned a = 0; a < 2; ++a) {
        device::mma_bf16(d[a][q], hadamard, lower.x, lower.y);
        device::mma_bf16(d[a][q], a == 0 ? hadamard : opposite, upper.x, upper.y);
        device::mma_bf16(d[a][q + 1], hadamard, lower.z, lower.w);
        device::mma_bf16(d[a][q + 1], a == 0 ? hadamard : opposite, upper.z, upper.w);
      }
    }
    unsigned pairs[2][2][4];
    unsigned largest;
    if constexpr (packed_tail) {
      __nv_bfloat162 most = as_pair(0), least = as_pair(0);
#pragma unroll
      for (unsigned a = 0; a < 2; ++a)
#pragma unroll
        for (unsigned r = 0; r < 2; ++r)
#pragma unroll
          for (unsigned q = 0; q < 4; ++q) {
            pairs[a][r][q] = device::narrow_bf16(d[a][q][2 * r], d[a][q][2 * r + 1]);
          }
#pragma unroll
      for (unsigned a = 0; a < 2; ++a)
#pragma unroll
        for (unsigned r = 0; r < 2; ++r)
#pragma unroll
          for (unsigned q = 0; q < 4; q += 2) {
            most = __hmax2(most, __hmax2(as_pair(pairs[a][r][q]), as_pair(pairs[a][r][q + 1])));
            least = __hmin2(least, __hmin2(as_pair(pairs[a][r][q]), as_pair(pairs[a][r][q + 1])));
          }
      const unsigned both = as_word(__hmax2(most, __hneg2(least)));
      largest = max(both << 16, both & 0xFFFF0000u);
    } else {
      float most = 0;
#pragma unroll
      for (unsigned a = 0; a < 2; ++a)
#pragma unroll
        for (unsigned q = 0; q < 4; ++q)
#pragma unroll
          for (unsigned i = 0; i < 4; ++i) most = fmaxf(most, fabsf(d[a][q][i]));
      largest = __float_as_uint(most);
    }
    largest = __reduce_max_sync(device::whole_warp, largest);
    if (lane == 0) shared.maxima[warp] = largest;
    __syncthreads();
    largest = __reduce_max_sync(device::whole_warp, shared.maxima[lane % 8]);
    const float maximum = fmaxf(__uint_as_float(largest) * norm, smallest_maximum);
    const float factor = __fdividef(codes_each_side * norm, maximum);
    const __nv_bfloat162 factors = __float2bfloat162_rn(factor), shift = __float2bfloat162_rn(code_shift + codes_each_side);
#pragma unroll
    for (unsigned a = 0; a < 2; ++a)
#pragma unroll
      for (unsigned r = 0; r < 2; ++r) {
        unsigned w[4];
#pragma unroll
        for (unsigned q = 0; q < 4; ++q) {
          if constexpr (packed_tail) w[q] = as_word(__hfma2(as_pair(pairs[a][r][q]), factors, shift));
          else
            w[q] = device::narrow_bf16(fmaf(d[a][q][2 * r], factor, code_shift + codes_each_side),
                                       fmaf(d[a][q][2 * r + 1], factor, code_shift + codes_each_side));
          w[q] = clamped(w[q]);
        }
        code_to[a << 7 | r << 9] = eight_codes(w[0], w[1], w[2], w[3]);
      }
    __syncthreads();
    codes[std::size_t{row} * threads + t] = shared.codes[code_from];
    if (t == 0) scales[row] = maximum / codes_each_side;
  }
}

}  // namespace aisp::ch19
