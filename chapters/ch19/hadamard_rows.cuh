// SPDX-License-Identifier: Apache-2.0
// The base of hadamard_quantize's kernels: which elements of a row a thread holds and how threads exchange them in shared memory,
// and INT4 codes with a scale of their row.
#pragma once
#include <cuda_bf16.h>
#include <aisp/device/reduce.cuh>

#include "quantized_rows.cuh"

namespace aisp::ch19 {

using shared::bf16, shared::packet;
inline constexpr unsigned threads = 256;
inline constexpr int held_log = 5, held = 1 << held_log;  // values of a thread
// Codes 0 to 15 are -8 to 7: the largest magnitude becomes 8, which only the negative side has.
inline constexpr float codes_each_side = 8;
inline constexpr float smallest_maximum = 1e-30f;  // of a row, so that a row of zeros has a scale

struct Quantizer {
  float factor, scale;

  // `largest`: of the values before they are multiplied by `norm`.
  __device__ __forceinline__ Quantizer(float largest, float norm) {
    const float maximum = fmaxf(largest * norm, smallest_maximum);
    factor = codes_each_side * norm / maximum;
    scale = maximum / codes_each_side;
  }
  // In the lowest byte: next to 2^23 the numbers of fp32 are 1 apart, so that the addition rounds to the nearest code.
  __device__ __forceinline__ unsigned code(float x) const {
    constexpr float shift = 0x1p23f;
    return __float_as_uint(fminf(fmaf(x, factor, shift + codes_each_side), shift + 2 * codes_each_side - 1));
  }
  __device__ __forceinline__ unsigned four_codes(float a, float b, float c, float d) const {  // a byte each
    return __byte_perm(__byte_perm(code(a), code(b), 0x0040), __byte_perm(code(c), code(d), 0x0040), 0x5410);
  }
};
// Eight codes of a byte each, as four bits each.
__device__ __forceinline__ unsigned pack_codes(unsigned low, unsigned high) {
  return __byte_perm(low | low >> 4, high | high >> 4, 0x6420);
}

// Returns an element's place in shared memory, in words: four more after each 32 and eight more after each 256, so that none of
// the accesses below conflicts in a bank. For numbers without a common bit the places add up.
__host__ __device__ constexpr unsigned word_of(unsigned element) { return element + element / 32 * 4 + element / 256 * 8; }

// Which elements a thread of a row's team holds: bits [0, low) and [bit, bit + high) of an element's number are that of the
// register, in this order, the others that of the thread.
template <int bit, int high, int low>
struct Layout {
  static_assert(high + low == held_log && low <= bit);
  static constexpr int neighbours = 1 << low;
  static __device__ constexpr int first_step() { return low; }  // of the steps that this layout is for
  static __host__ __device__ constexpr unsigned of_register(unsigned r) { return r % neighbours | r / neighbours << bit; }
  static __device__ __forceinline__ unsigned of_thread(unsigned t) {
    return (t & ((1u << (bit - low)) - 1)) << low | t >> (bit - low) << (bit + high);
  }

  // `row`: of shared memory, from the thread's first element on.
  static __device__ __forceinline__ void store(const float (&x)[held], float* row) {
    if constexpr (low >= 2) {
#pragma unroll
      for (unsigned r = 0; r < held; r += 4)
        *reinterpret_cast<float4*>(row + word_of(of_register(r))) = make_float4(x[r], x[r + 1], x[r + 2], x[r + 3]);
    } else {
#pragma unroll
      for (unsigned r = 0; r < held; ++r) row[word_of(of_register(r))] = x[r];
    }
  }
  static __device__ __forceinline__ void load(float (&x)[held], const float* row) {
    if constexpr (low >= 2) {
#pragma unroll
      for (unsigned r = 0; r < held; r += 4) {
        const float4 four = *reinterpret_cast<const float4*>(row + word_of(of_register(r)));
        x[r] = four.x, x[r + 1] = four.y, x[r + 2] = four.z, x[r + 3] = four.w;
      }
    } else {
#pragma unroll
      for (unsigned r = 0; r < held; ++r) x[r] = row[word_of(of_register(r))];
    }
  }
};

// A row of 2^log elements, for a team of 2^log / 32 threads.
template <int log>
struct Row {
  static constexpr unsigned columns = 1u << log, team = columns / held, packets = columns / packet;
  static constexpr unsigned block = team > threads ? team : threads, rows = block / team;
  static constexpr int middle_bits = log < 10 ? log - 5 : 5, last_bits = log > 10 ? log - 10 : 0;
  static constexpr unsigned words = word_of(columns);
  using Loaded = Layout<log - 2, 2, 3>;  // four packets
  using Middle = Layout<3, middle_bits, 5 - middle_bits>;
  using Last = Layout<8, last_bits, 5 - last_bits>;

  float values[rows][words];
  unsigned char codes[rows][columns];
  float maxima[device::largest_block_in_warps];
};

template <int first, int last>
__device__ __forceinline__ void butterflies(float (&x)[held]) {
#pragma unroll
  for (int step = first; step < last; ++step)
#pragma unroll
    for (int r = 0; r < held; ++r)
      if ((r >> step & 1) == 0) {
        const float a = x[r], b = x[r | 1 << step];
        x[r] = a + b;
        x[r | 1 << step] = a - b;
      }
}

template <class Held>
__device__ __forceinline__ void store_rotated(const float (&x)[held], float norm, bf16* row) {
  constexpr int width = Held::neighbours < packet ? Held::neighbours : packet;
#pragma unroll
  for (unsigned r = 0; r < held; r += width) {
    bf16* const to = row + Held::of_register(r);
    if constexpr (width == 8) {
      const float scaled[packet] = {x[r] * norm,     x[r + 1] * norm, x[r + 2] * norm, x[r + 3] * norm,
                                    x[r + 4] * norm, x[r + 5] * norm, x[r + 6] * norm, x[r + 7] * norm};
      *reinterpret_cast<uint4*>(to) = shared::pack(scaled);
    } else if constexpr (width == 4) {
      *reinterpret_cast<uint2*>(to) =
          make_uint2(device::narrow_bf16(x[r] * norm, x[r + 1] * norm), device::narrow_bf16(x[r + 2] * norm, x[r + 3] * norm));
    } else if constexpr (width == 2) {
      *reinterpret_cast<unsigned*>(to) = device::narrow_bf16(x[r] * norm, x[r + 1] * norm);
    } else *to = __float2bfloat16(x[r] * norm);
  }
}

// Codes go through shared memory once, a byte each, so that 16 neighbours leave together.
template <int log, class Held>
__device__ __forceinline__ void store_quantized(const float (&x)[held], float norm, Row<log>& shared, unsigned t, bool inside,
                                                uint2* codes, float* scale) {
  using Of = Row<log>;
  const unsigned team_row = threadIdx.x / Of::team;
  float largest = 0;
#pragma unroll
  for (int r = 0; r < held; ++r) largest = fmaxf(largest, fabsf(x[r]));
  if constexpr (Of::team <= device::warp_size) largest = device::warp_max<static_cast<int>(Of::team)>(largest);
  else {
    constexpr unsigned warps = Of::team / device::warp_size;
    largest = device::warp_max(largest);
    if (threadIdx.x % 32 == 0) shared.maxima[threadIdx.x / 32] = largest;
    __syncthreads();
    largest = device::warp_max(shared.maxima[team_row * warps + threadIdx.x % warps]);
  }
  const Quantizer quantizer{largest, norm};
  unsigned char* const bytes = shared.codes[team_row] + Held::of_thread(t);
#pragma unroll
  for (unsigned r = 0; r < held; r += 4) {
    const unsigned four = quantizer.four_codes(x[r], x[r + 1], x[r + 2], x[r + 3]);
    if constexpr (Held::neighbours >= 4) *reinterpret_cast<unsigned*>(bytes + Held::of_register(r)) = four;
    else if constexpr (Held::neighbours == 2) {
      *reinterpret_cast<unsigned short*>(bytes + Held::of_register(r)) = static_cast<unsigned short>(four);
      *reinterpret_cast<unsigned short*>(bytes + Held::of_register(r + 2)) = static_cast<unsigned short>(four >> 16);
    } else {
#pragma unroll
      for (unsigned k = 0; k < 4; ++k) bytes[Held::of_register(r + k)] = static_cast<unsigned char>(four >> 8 * k);
    }
  }
  __syncthreads();
  if (!inside) return;
  const uint4* const from = reinterpret_cast<const uint4*>(shared.codes[team_row]);
#pragma unroll
  for (unsigned i = t; i < Of::columns / 16; i += Of::team) {
    const uint4 bytes_of_16 = from[i];
    codes[i] = make_uint2(pack_codes(bytes_of_16.x, bytes_of_16.y), pack_codes(bytes_of_16.z, bytes_of_16.w));
  }
  if (t == 0) *scale = quantizer.scale;
}

}  // namespace aisp::ch19
