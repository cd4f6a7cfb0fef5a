// SPDX-License-Identifier: Apache-2.0
// Hadamard transforms by tensor cores: eight steps within a warp, where the result of a product lies as the operand of the next
// must lie; and all thirteen of a row of 8192, the last five after one exchange through shared memory in bf16.
#pragma once
#include <cuda_bf16.h>
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

// Numbers of bf16 are 1 apart between 128 and 256: rounding to it rounds to the nearest code, and two lie in a word.
__device__ __forceinline__ unsigned two_codes(float a, float b, float factor) {
  constexpr float shift = 128 + codes_each_side;
  const unsigned pair = device::narrow_bf16(fmaf(a, factor, shift), fmaf(b, factor, shift)), most = 0x430F430F;  // 15 in both
  const __nv_bfloat162 codes =
      __hmin2(reinterpret_cast<const __nv_bfloat162&>(pair), reinterpret_cast<const __nv_bfloat162&>(most));
  return reinterpret_cast<const unsigned&>(codes);
}
// Codes 0 and 4, 1 and 5, 2 and 6, 3 and 7, in four bits each; what makes them bf16 is taken off all at once.
__device__ __forceinline__ unsigned eight_codes(unsigned a, unsigned b, unsigned c, unsigned d) {
  return ((d * 16 + c) * 16 + b) * 16 + a - 0x43004300u * 0x1111u;
}

struct ProductRow {
  static constexpr unsigned columns = 8192, packets = columns / packet;
  static constexpr int blocks_per_sm = 4;

  uint4 loaded[packets];
  uint4 exchanged[packets];
  uint4 codes[columns / 32];
  bf16 matrices[2][16][16];  // of signs, and of the opposite ones
  unsigned maxima[threads / 32];
  std::uint64_t came;
};

// A block goes on from row to row; the next one comes to shared memory while this one is in registers. What bit of an element's
// number is what: a thread loads packets (bits 0 to 2) at t (3 to 10) and t + 256 j (11 and 12). Behind the exchange bits 8, 9
// and 11 are rows of B and of results, 12 chooses between the fragment's words, and for bit 10 products with both signs are added
// up. Bits 2 to 4 are B's columns, so that a thread of the result has bits 0 to 2 of its elements: a word of eight codes.
static __global__ __launch_bounds__(threads, ProductRow::blocks_per_sm) void products_kernel(const uint4* __restrict__ x,
                                                                                             uint4* __restrict__ codes,
                                                                                             float* __restrict__ scales,
                                                                                             float norm, unsigned rows) {
  extern __shared__ __align__(128) unsigned char row_space[];
  auto& shared = *reinterpret_cast<ProductRow*>(row_space);
  const unsigned t = threadIdx.x, lane = t % 32, warp = t / 32;
  const auto fetch = [&](unsigned row) {
    if (t != 0 || row >= rows) return;
    device::barrier_arrive_expect(&shared.came, sizeof shared.loaded);
    device::bulk_load(shared.loaded, x + std::size_t{row} * ProductRow::packets, sizeof shared.loaded, &shared.came);
  };
  if (t == 0) {
    device::barrier_init(&shared.came, 1);
    device::fence_barrier_init();
  }
  const bool negative = (__popc(t / 16 & t % 16) & 1) != 0;
  shared.matrices[0][t / 16][t % 16] = __float2bfloat16(negative ? -1.0f : 1.0f);
  shared.matrices[1][t / 16][t % 16] = __float2bfloat16(negative ? 1.0f : -1.0f);
  __syncthreads();
  fetch(blockIdx.x);
  // From memory: were it known that words are equal, the compiler would copy them before each product.
  unsigned hadamard[4], opposite[4];
  device::load_matrices(hadamard, device::shared_address(&shared.matrices[0][lane % 16][lane / 16 * 8]));
  device::load_matrices(opposite, device::shared_address(&shared.matrices[1][lane % 16][lane / 16 * 8]));

  // Packets of the exchange hold bits 0 and 12. Eight neighbouring lanes write bits 3 to 5 and read bits 8, 9 and 2, each in all
  // eight groups of four banks.
  const unsigned to = ((lane & 7) ^ (warp & 3)) | (warp & 3) << 3 | lane / 8 << 6 | warp / 4 << 8;
  const unsigned from = ((lane / 8 | (warp & 1) << 2) ^ (lane & 7)) | (lane & 7) << 3 | warp / 2 << 6;
  // Words of codes are written by lanes that differ in bits 3, 4, 8, 9 and 11, and read in their order.
  unsigned* const code_to =
      reinterpret_cast<unsigned*>(shared.codes) + (lane % 4 | (warp ^ lane / 4) << 2 | lane / 8 << 5 | (lane / 4 & 1) << 8);
  const unsigned code_from = t ^ ((t >> 6 & 1) | (t >> 3 & 3) << 1);

  unsigned phase = 0;
  for (unsigned row = blockIdx.x; row < rows; row += gridDim.x) {
    device::barrier_wait(&shared.came, phase);
    phase ^= 1;
    uint4 loaded[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) loaded[j] = shared.loaded[t + j * threads];
    unsigned pairs[packet][2];  // of bit 11; [bits 0 to 2][bit 12]
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      float low[packet], high[packet];
      tensor_steps(loaded[2 * half], hadamard, low);
      tensor_steps(loaded[2 * half + 1], hadamard, high);
#pragma unroll
      for (unsigned i = 0; i < packet; ++i) pairs[i][half] = device::narrow_bf16(low[i], high[i]);
    }
#pragma unroll
    for (unsigned i = 0; i < packet; i += 2)
      shared.exchanged[(to ^ (i / 4) << 2) | i / 4 << 5 | (i / 2 & 1) << 9] =
          make_uint4(pairs[i][0], pairs[i][1], pairs[i + 1][0], pairs[i + 1][1]);
    __syncthreads();
    fetch(row + gridDim.x);

    float sums[2][4][4] = {};  // [bit 10][bits 0 and 1][bit 12, bit 2]
#pragma unroll
    for (unsigned q = 0; q < 4; q += 2) {
      const uint4 lower = shared.exchanged[from | q << 8], upper = shared.exchanged[from | q << 8 | 1 << 8];
#pragma unroll
      for (unsigned a = 0; a < 2; ++a) {
        device::mma_bf16(sums[a][q], hadamard, lower.x, lower.y);
        device::mma_bf16(sums[a][q], a == 0 ? hadamard : opposite, upper.x, upper.y);
        device::mma_bf16(sums[a][q + 1], hadamard, lower.z, lower.w);
        device::mma_bf16(sums[a][q + 1], a == 0 ? hadamard : opposite, upper.z, upper.w);
      }
    }
    float most = 0;
#pragma unroll
    for (unsigned a = 0; a < 2; ++a)
#pragma unroll
      for (unsigned q = 0; q < 4; ++q)
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) most = fmaxf(most, fabsf(sums[a][q][i]));
    // Floats that are not negative are ordered as their bits are.
    const unsigned of_warp = __reduce_max_sync(device::whole_warp, __float_as_uint(most));
    if (lane == 0) shared.maxima[warp] = of_warp;
    __syncthreads();
    const unsigned of_row = __reduce_max_sync(device::whole_warp, shared.maxima[lane % (threads / 32)]);
    const Quantizer quantizer{__uint_as_float(of_row), norm};
#pragma unroll
    for (unsigned a = 0; a < 2; ++a)
#pragma unroll
      for (unsigned r = 0; r < 2; ++r) {
        unsigned two[4];
#pragma unroll
        for (unsigned q = 0; q < 4; ++q) two[q] = two_codes(sums[a][q][2 * r], sums[a][q][2 * r + 1], quantizer.factor);
        code_to[a << 7 | r << 9] = eight_codes(two[0], two[1], two[2], two[3]);
      }
    __syncthreads();
    codes[std::size_t{row} * threads + t] = shared.codes[code_from];
    if (t == 0) scales[row] = quantizer.scale;
  }
}

}  // namespace aisp::ch19
