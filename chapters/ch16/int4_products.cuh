// SPDX-License-Identifier: Apache-2.0
// Products of INT4 weights with one or a few tokens, with a gate or without, beside those of weight_only_int4 along K: in a
// checkpoint's layout, as fragments of mma.sync, of loads alone, and of bf16 weights.
#pragma once
#include <aisp/device/matrix.cuh>
#include <aisp/device/reduce.cuh>

#include "int4_layouts.cuh"

namespace aisp::ch16::int4 {

constexpr unsigned threads = 128, warps = threads / 32;
constexpr unsigned rows_at_once = 4;           // of a warp
constexpr unsigned step = 32 * 32;             // codes of a row that a warp reads at once
constexpr unsigned columns = 32, slices = 16;  // of the outputs of a block in the checkpoint's layout, and of its K

// A product of one or a few tokens with half the MLP: `rows` outputs, or with a gate so many of gate times up.
struct Product {
  const void* weights;
  const Quantizer* quantizers;
  const bf16* x;  // [token][k]
  float* y;       // [row][token]
  bf16* hidden;   // [token][row], with a gate
  unsigned rows, k;
};

__device__ __forceinline__ float low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(unsigned pair) { return __uint_as_float(pair & 0xFFFF0000u); }
__device__ __forceinline__ void widen(const uint4& packet, float (&x)[8]) {
  x[0] = low(packet.x), x[1] = high(packet.x), x[2] = low(packet.y), x[3] = high(packet.y);
  x[4] = low(packet.z), x[5] = high(packet.z), x[6] = low(packet.w), x[7] = high(packet.w);
}
__device__ __forceinline__ float scale_of(unsigned quantizer) { return __uint_as_float(scale_bits(quantizer)); }
__device__ __forceinline__ float zero_point(unsigned quantizer) { return static_cast<float>(zero_of(quantizer)); }

template <bool gated>
__device__ __forceinline__ void store(const Product& p, unsigned row, unsigned token, unsigned tokens, float gate, float up) {
  if constexpr (gated) p.hidden[std::size_t(token) * p.rows + row] = __float2bfloat16_rn(gate / (1 + __expf(-gate)) * up);
  else p.y[std::size_t{row} * tokens + token] = gate;
}

// bf16 with the exponent of 128 has whole numbers in its low bits.
constexpr unsigned nibbles = 0x000F000Fu, bf16_128 = 0x43004300u;

// [k / 8][row]: a thread has four outputs and a sixteenth of the groups, so that a warp reads four whole lines.
template <class Expansion, int tokens, bool gated>
__global__ __launch_bounds__(threads, tokens == 1 ? 5 : 2) void gptq_kernel(Product p) {
  __shared__ float sums[slices][columns + 1];
  const unsigned own = threadIdx.x % 8 * 4, slice = threadIdx.x / 8, all_rows = gated ? 2 * p.rows : p.rows;
  float gates[tokens] = {};
#pragma unroll 1
  for (unsigned part = 0; part < (gated ? 2 : 1); ++part) {
    const unsigned row = part * p.rows + blockIdx.x * columns + own;
    float results[4][tokens] = {};
    for (unsigned g = slice; g < p.k / group; g += slices) {
      float dots[4][tokens] = {}, x_sums[tokens] = {};
      const uint4* const words =
          reinterpret_cast<const uint4*>(static_cast<const unsigned*>(p.weights) + std::size_t{g} * (group / 8) * all_rows + row);
      const uint2 quantizers = *reinterpret_cast<const uint2*>(p.quantizers + std::size_t{g} * all_rows + row);
#pragma unroll 1
      for (unsigned first = 0; first < group / 8; first += 8) {
        uint4 loaded[8];
#pragma unroll
        for (unsigned r = 0; r < 8; ++r) loaded[r] = words[std::size_t{first + r} * (all_rows / 4)];
        __syncwarp();  // keeps the compiler, which saves registers, from moving loads between the sums
#pragma unroll
        for (unsigned r = 0; r < 8; ++r) {
          float w[4][8];
          Expansion::expand(loaded[r].x, w[0]);
          Expansion::expand(loaded[r].y, w[1]);
          Expansion::expand(loaded[r].z, w[2]);
          Expansion::expand(loaded[r].w, w[3]);
#pragma unroll
          for (int token = 0; token < tokens; ++token) {
            float x[8];
            widen(*reinterpret_cast<const uint4*>(p.x + std::size_t(token) * p.k + g * group + (first + r) * 8), x);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
              x_sums[token] += x[i];
#pragma unroll
              for (int c = 0; c < 4; ++c) dots[c][token] = fmaf(w[c][i], x[i], dots[c][token]);
            }
          }
        }
      }
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const unsigned quantizer = (c < 2 ? quantizers.x : quantizers.y) >> c % 2 * 16;
#pragma unroll
        for (int token = 0; token < tokens; ++token)
          results[c][token] =
              fmaf(scale_of(quantizer), fmaf(-zero_point(quantizer), x_sums[token], dots[c][token]), results[c][token]);
      }
    }
#pragma unroll
    for (int token = 0; token < tokens; ++token) {
      __syncthreads();
#pragma unroll
      for (int c = 0; c < 4; ++c) sums[slice][own + c] = results[c][token];
      __syncthreads();
      if (threadIdx.x >= columns) continue;
      float sum = 0;
      for (const auto& of_slice : sums) sum += of_slice[threadIdx.x];
      if (part + 1 == (gated ? 2 : 1))
        store<gated>(p, blockIdx.x * columns + threadIdx.x, token, tokens, gated ? gates[token] : sum, sum);
      gates[token] = sum;
    }
  }
}

// The loads of rows_kernel, and nothing done with them that a number could show.
template <bool gated>
__global__ __launch_bounds__(threads) void words_kernel(Product p) {
  const unsigned lane = threadIdx.x % 32, packets = p.k / 32;
  constexpr unsigned outputs = gated ? rows_at_once / 2 : rows_at_once;
  const unsigned first = (blockIdx.x * warps + threadIdx.x / 32) * outputs;
  unsigned sum = 0;
#pragma unroll 2
  for (unsigned at = 0; at < packets; at += 32) {
#pragma unroll
    for (unsigned r = 0; r < rows_at_once; ++r) {
      const std::size_t row = first + r % outputs + r / outputs * p.rows;
      const uint4 packet = static_cast<const uint4*>(p.weights)[row * packets + at + lane];
      sum += packet.x + packet.y + packet.z + packet.w + p.quantizers[row * (p.k / group) + (at + lane) / 4];
    }
  }
  sum = device::warp_sum(sum);
  if (lane < outputs) store<gated>(p, first + lane, 0, 1, static_cast<float>(sum % 2), 1);
}

// 16 rows a block, or with a gate 16 and 16; warps share K. The words are fragments of weights, and x is the other operand, a
// column a token. A product with ones gives the sums of x. The next words are requested before those that are there are
// multiplied.
template <int tokens, bool gated>
struct Fragments {
  static constexpr int tiles = gated ? 2 : 1, groups = gated ? 1 : 2, blocks_of_group = group / 64;  // groups: at once
  static_assert(tokens <= 8);
  uint4 words[tiles][groups * blocks_of_group];
  unsigned quantizers[tiles][groups][2];

  __device__ __forceinline__ void request(const Product& p, unsigned first) {
    const unsigned lane = threadIdx.x % 32, g = lane / 4, all = p.k / group;
#pragma unroll
    for (int of = 0; of < groups; ++of) {
#pragma unroll
      for (int tile = 0; tile < tiles; ++tile) {
        const std::size_t at = (std::size_t{blockIdx.x} + tile * (p.rows / tile_rows)) * all + first + of;
#pragma unroll
        for (int block = 0; block < blocks_of_group; ++block)
          words[tile][of * blocks_of_group + block] =
              static_cast<const uint4*>(p.weights)[(at * blocks_of_group + block) * 32 + lane];
        quantizers[tile][of][0] = p.quantizers[at * tile_rows + g];
        quantizers[tile][of][1] = p.quantizers[at * tile_rows + g + 8];
      }
    }
  }
  __device__ __forceinline__ void multiply_add(const Product& p, unsigned first, float (&results)[tiles][4]) const {
    const unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int of = 0; of < groups; ++of) {
      float dots[tiles][4] = {}, x_sums[4] = {};
#pragma unroll
      for (int block = of * blocks_of_group; block < (of + 1) * blocks_of_group; ++block) {
        uint4 x[2] = {};
        if (g < tokens) {
          const uint4* const from =
              reinterpret_cast<const uint4*>(p.x + std::size_t{g} * p.k + first * group + block * 64 + t * 16);
          x[0] = from[0], x[1] = from[1];
        }
        const unsigned b[8] = {x[0].x, x[0].y, x[0].z, x[0].w, x[1].x, x[1].y, x[1].z, x[1].w};
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          constexpr unsigned one = 0x3F803F80u;
          const unsigned ones[4] = {one, one, one, one};
          device::mma_bf16(x_sums, ones, b[2 * m], b[2 * m + 1]);
#pragma unroll
          for (int tile = 0; tile < tiles; ++tile) {
            const uint4& four = words[tile][block];
            const unsigned word = m == 0 ? four.x : m == 1 ? four.y : m == 2 ? four.z : four.w;
            const unsigned a[4] = {(word & nibbles) | bf16_128, (word >> 4 & nibbles) | bf16_128,
                                   (word >> 8 & nibbles) | bf16_128, (word >> 12 & nibbles) | bf16_128};
            device::mma_bf16(dots[tile], a, b[2 * m], b[2 * m + 1]);
          }
        }
      }
#pragma unroll
      for (int tile = 0; tile < tiles; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const unsigned quantizer = quantizers[tile][of][i / 2];
          results[tile][i] =
              fmaf(scale_of(quantizer), fmaf(-128 - zero_point(quantizer), x_sums[i], dots[tile][i]), results[tile][i]);
        }
    }
  }
};
template <int tokens, bool gated>
__global__ __launch_bounds__(threads, 4) void fragments_kernel(Product p) {
  using Stage = Fragments<tokens, gated>;
  __shared__ float sums[warps][Stage::tiles][tile_rows][8];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const unsigned share = p.k / group / warps, begin = warp * share;  // K is whole steps, so that shares are even
  float results[Stage::tiles][4] = {};
  Stage now, next;
  now.request(p, begin);
#pragma unroll 2
  for (unsigned of = 0; of < share; of += Stage::groups) {
    next.request(p, begin + min(of + Stage::groups, share - Stage::groups));
    __syncwarp();  // keeps the compiler from moving these loads to where they are used
    now.multiply_add(p, begin + of, results);
    now = next;
  }
#pragma unroll
  for (int tile = 0; tile < Stage::tiles; ++tile)
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[warp][tile][g + i / 2 * 8][t * 2 + i % 2] = results[tile][i];
  __syncthreads();
  for (unsigned i = threadIdx.x; i < tile_rows * tokens; i += threads) {
    const unsigned row = i % tile_rows, token = i / tile_rows;
    float both[2] = {};
    for (const auto& of_warp : sums)
#pragma unroll
      for (int tile = 0; tile < Stage::tiles; ++tile) both[tile] += of_warp[tile][row][token];
    store<gated>(p, blockIdx.x * tile_rows + row, token, tokens, both[0], both[1]);
  }
}

// The same of bf16 weights, a warp a row, or with a gate two.
template <int tokens, bool gated>
__global__ __launch_bounds__(threads) void bf16_kernel(Product p) {
  constexpr int parts = gated ? 2 : 1;
  const unsigned lane = threadIdx.x % 32, packets = p.k / 8, row = blockIdx.x * warps + threadIdx.x / 32;
  float results[parts][tokens] = {};
#pragma unroll 4
  for (unsigned at = lane; at < packets; at += 32) {
    float w[parts][8];
#pragma unroll
    for (int part = 0; part < parts; ++part)
      widen(static_cast<const uint4*>(p.weights)[(row + std::size_t(part) * p.rows) * packets + at], w[part]);
#pragma unroll
    for (int token = 0; token < tokens; ++token) {
      float x[8];
      widen(reinterpret_cast<const uint4*>(p.x + std::size_t(token) * p.k)[at], x);
#pragma unroll
      for (int part = 0; part < parts; ++part)
#pragma unroll
        for (int k = 0; k < 8; ++k) results[part][token] = fmaf(w[part][k], x[k], results[part][token]);
    }
  }
#pragma unroll
  for (int token = 0; token < tokens; ++token) {
#pragma unroll
    for (int part = 0; part < parts; ++part) results[part][token] = device::warp_sum(results[part][token]);
    if (lane == 0) store<gated>(p, row, token, tokens, results[0][token], results[parts - 1][token]);
  }
}
static __global__ __launch_bounds__(threads) void gate_kernel(const float* gates_and_ups, bf16* hidden, unsigned ffn,
                                                              unsigned tokens) {
  const unsigned i = blockIdx.x * threads + threadIdx.x, row = i / tokens, token = i % tokens;
  if (row >= ffn) return;
  const float gate = gates_and_ups[i], up = gates_and_ups[std::size_t{ffn} * tokens + i];
  hidden[std::size_t(token) * ffn + row] = __float2bfloat16_rn(gate / (1 + __expf(-gate)) * up);
}

}  // namespace aisp::ch16::int4
