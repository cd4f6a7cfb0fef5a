// SPDX-License-Identifier: Apache-2.0
// An MoE layer's kernels around the products of its experts: the gate, the order of the rows, the activation, and the way back.
// Choice s % top_k of token s / top_k is slot s; a slot is one row of its expert.
#pragma once
#include <cuda_fp8.h>
#include <aisp/device/reduce.cuh>
#include <aisp/device/vector.cuh>
#include <aisp/generators.hpp>

#include <cmath>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "gemm/epilogue.cuh"
#include "gemm/schedule.cuh"
#include "moe/index.cuh"
#include "rows.cuh"

namespace aisp::ch20::layer {

using shared::bf16, shared::packet;
using e4m3 = __nv_fp8_e4m3;
inline constexpr int threads = 256, gate_warps = threads / device::warp_size;
inline constexpr int block = 128;  // along K, and of weights also along N: elements of FP8 that share a scale
inline constexpr float largest_e4m3 = 448;

inline unsigned blocks_for(std::size_t count) { return static_cast<unsigned>((count + threads - 1) / threads); }

__device__ inline int lane() { return static_cast<int>(threadIdx.x % device::warp_size); }
__device__ inline unsigned token_of_warp() { return blockIdx.x * gate_warps + threadIdx.x / device::warp_size; }

// Numbers about slots and rows, all in one allocation.
struct Index {
  int* data;
  std::size_t slots, experts;

  static std::size_t tiles_of(std::size_t slots) { return (slots + moe::tile_slots - 1) / moe::tile_slots; }
  static std::size_t size(std::size_t slots, std::size_t experts) { return 6 * slots + experts * (tiles_of(slots) + 1) + 2; }
  std::size_t tiles() const { return tiles_of(slots); }

  int* experts_of() const { return data; }
  int* slot_of_row() const { return data + slots; }
  int* row_of_slot() const { return data + 2 * slots; }
  int* token_of_row() const { return data + 3 * slots; }
  int* sorted() const { return data + 4 * slots; }  // the experts of rows, after a sort; the reference has slots here
  int* ranks() const { return data + 5 * slots; }
  int* starts() const { return data + 6 * slots; }
  int* offsets() const { return starts() + experts * tiles(); }
  unsigned* done() const { return reinterpret_cast<unsigned*>(offsets() + experts + 1); }
};

// As gemm::list_row_tiles_kernel does it, on the host. Returns how many there are.
inline int list_row_tiles(const int* offsets, std::size_t experts, int tile_rows, int band, gemm::RowTile* tiles) {
  int count = 0;
  for (std::size_t expert = 0; expert < experts; ++expert) {
    const int begin = offsets[expert], end = offsets[expert + 1];
    const int own = (end - begin + tile_rows - 1) / tile_rows, bands = (own + band - 1) / band;
    for (int number = 0, i = 0; number < bands; ++number) {
      const int first = count, height = own / bands + (number < own % bands ? 1 : 0);
      for (const int up_to = i + height; i < up_to; ++i)
        tiles[count++] = {begin + i * tile_rows, end, static_cast<int>(expert), first, height};
    }
  }
  return count;
}

enum class Bias : std::uint8_t { none, zipf, same_experts };  // of the gate: the values of the size "routing"

// On a grid, so that sums with it are exact. The seed decides which experts are favoured.
inline void fill_bias(std::span<float> to, Bias kind, std::size_t top_k, std::uint64_t seed) {
  std::vector<std::size_t> ranks(to.size());
  std::iota(ranks.begin(), ranks.end(), std::size_t{0});
  for (std::size_t i = to.size(); i > 1; --i) std::swap(ranks[i - 1], ranks[random_bits(seed, i) % i]);
  for (std::size_t e = 0; e < to.size(); ++e) {
    const float of_zipf = -std::round(1024 * std::log(static_cast<float>(ranks[e] + 1))) / 1024;
    to[e] = kind == Bias::zipf ? of_zipf : kind == Bias::same_experts && ranks[e] < top_k ? 1024 : 0;
  }
}

// Integers that are ordered as floats are.
__device__ inline unsigned key_of(float x) {
  const unsigned bits = __float_as_uint(x + 0.0f);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}
__device__ inline float value_of(unsigned key) { return __uint_as_float(key >> 31 != 0 ? key & 0x7FFFFFFFu : ~key); }

struct Winner {
  float value;
  int expert;
};

// Returns winner r of the k largest to lane r. Lane l has experts l, l + 32, ...; of equal values the lower expert comes first.
template <int each>
__device__ Winner find_winners(const float (&values)[each], int k) {
  unsigned keys[each];
#pragma unroll
  for (int i = 0; i < each; ++i) keys[i] = key_of(values[i]);
  Winner own{};
  for (int r = 0; r < k; ++r) {
    unsigned largest = keys[0], expert = ~0u;
#pragma unroll
    for (int i = 1; i < each; ++i) largest = max(largest, keys[i]);
    largest = __reduce_max_sync(device::whole_warp, largest);
#pragma unroll
    for (int i = each - 1; i >= 0; --i) expert = keys[i] == largest ? static_cast<unsigned>(lane() + i * 32) : expert;
    expert = __reduce_min_sync(device::whole_warp, expert);
    if (lane() == r) own = {value_of(largest), static_cast<int>(expert)};
#pragma unroll
    for (int i = 0; i < each; ++i) keys[i] = static_cast<unsigned>(lane() + i * 32) == expert ? 0 : keys[i];
  }
  return own;
}

struct Gate {
  const float *logits, *bias;  // [tokens][experts], [experts]
  int* experts_of;             // [slots]
  float* weights;              // [slots]
  int tokens, top_k;
};

template <int each>
__device__ void load_logits(const Gate& gate, float (&values)[each]) {
#pragma unroll
  for (int i = 0; i < each; ++i)
    values[i] = gate.logits[(std::size_t{token_of_warp()} * each + i) * 32 + lane()] + gate.bias[i * 32 + lane()];
}

// The definition in three kernels: probabilities of all experts, the largest of them, and these divided by their sum.
template <int each>
__global__ __launch_bounds__(threads) void softmax_kernel(const Gate gate, float* probabilities) {
  if (token_of_warp() >= gate.tokens) return;
  float values[each], sum = 0;
  load_logits(gate, values);
  const float maximum = device::warp_max(shared::maximum_of(values));
#pragma unroll
  for (float& value : values) sum += value = __expf(value - maximum);
  sum = device::warp_sum(sum);
#pragma unroll
  for (int i = 0; i < each; ++i) probabilities[(std::size_t{token_of_warp()} * each + i) * 32 + lane()] = values[i] / sum;
}
template <int each>
__global__ __launch_bounds__(threads) void top_k_kernel(const Gate gate, const float* probabilities) {
  if (token_of_warp() >= gate.tokens) return;
  float values[each];
#pragma unroll
  for (int i = 0; i < each; ++i) values[i] = probabilities[(std::size_t{token_of_warp()} * each + i) * 32 + lane()];
  const Winner own = find_winners(values, gate.top_k);
  if (lane() >= gate.top_k) return;
  gate.experts_of[token_of_warp() * gate.top_k + lane()] = own.expert;
  gate.weights[token_of_warp() * gate.top_k + lane()] = own.value;
}
static __global__ __launch_bounds__(threads) void renormalize_kernel(const Gate gate) {
  const int token = static_cast<int>(blockIdx.x * threads + threadIdx.x);
  if (token >= gate.tokens) return;
  float sum = 0;
  for (int k = 0; k < gate.top_k; ++k) sum += gate.weights[token * gate.top_k + k];
  for (int k = 0; k < gate.top_k; ++k) gate.weights[token * gate.top_k + k] /= sum;
}

// The same in one kernel: softmax over the winners alone gives their renormalized probabilities.
template <int each>
__global__ __launch_bounds__(threads) void gate_kernel(const Gate gate) {
  if (token_of_warp() >= gate.tokens) return;
  float values[each];
  load_logits(gate, values);
  const Winner own = find_winners(values, gate.top_k);
  const float maximum = __shfl_sync(device::whole_warp, own.value, 0);
  const float weight = lane() < gate.top_k ? __expf(own.value - maximum) : 0;
  const float sum = device::warp_sum(weight);
  if (lane() >= gate.top_k) return;
  gate.experts_of[token_of_warp() * gate.top_k + lane()] = own.expert;
  gate.weights[token_of_warp() * gate.top_k + lane()] = weight / sum;
}

// After the sort: where each expert's rows begin.
static __global__ __launch_bounds__(threads) void offsets_kernel(const int* sorted_experts, int* offsets, int rows, int experts) {
  const int row = static_cast<int>(blockIdx.x * threads + threadIdx.x);
  if (row >= rows) return;
  const int expert = sorted_experts[row];
  for (int e = row == 0 ? 0 : sorted_experts[row - 1] + 1; e <= expert; ++e) offsets[e] = row;
  if (row == rows - 1)
    for (int e = expert + 1; e <= experts; ++e) offsets[e] = rows;
}

// After rank_slots_kernel: the slot and the token of each row, and the row of each slot.
static __global__ __launch_bounds__(moe::tile_slots) void place_kernel(const moe::Slots at, int top_k, int* slot_of_row,
                                                                       int* token_of_row, int* row_of_slot) {
  const int slot = static_cast<int>(blockIdx.x * moe::tile_slots + threadIdx.x);
  if (slot >= at.slots) return;
  const int row = moe::row_of(at, slot);
  slot_of_row[row] = slot;
  token_of_row[row] = slot / top_k;
  row_of_slot[slot] = row;
}

// A block for each row.
static __global__ __launch_bounds__(threads) void gather_kernel(const uint4* tokens, const int* slot_of_row, uint4* rows,
                                                                int top_k, int packets) {
  const auto token = static_cast<std::size_t>(slot_of_row[blockIdx.x] / top_k);
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < packets; i += threads)
    rows[std::size_t{blockIdx.x} * packets + i] = tokens[token * packets + i];
}

// Columns of `h` come in groups of eight, eight gates and the eight values that they gate. A thread has eight products.
static __global__ __launch_bounds__(threads) void swiglu_kernel(const uint4* h, uint4* products, std::size_t packets) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= packets) return;
  float gate[packet], up[packet];
  shared::unpack(h[2 * i], gate);
  shared::unpack(h[2 * i + 1], up);
#pragma unroll
  for (int k = 0; k < packet; ++k) gate[k] = gemm::SwiGlu::of(gate[k], up[k]);
  products[i] = shared::pack(gate);
}

// Adds rows, times their slots' weights, to their tokens' sums, four elements to an atomic addition. A block for each row.
static __global__ __launch_bounds__(threads) void scatter_kernel(const uint2* rows, const int* slot_of_row, const float* weights,
                                                                 float* sums, int top_k, int fours) {
  const int slot = slot_of_row[blockIdx.x];
  const float weight = weights[slot];
  float* const to = sums + static_cast<std::size_t>(slot / top_k) * fours * 4;
  for (int i = static_cast<int>(threadIdx.x); i < fours; i += threads) {
    const uint2 four = rows[std::size_t{blockIdx.x} * fours + i];
    device::add_to_global(to + 4 * i, __uint_as_float(four.x << 16) * weight, __uint_as_float(four.x & 0xFFFF0000u) * weight,
                          __uint_as_float(four.y << 16) * weight, __uint_as_float(four.y & 0xFFFF0000u) * weight);
  }
}
static __global__ __launch_bounds__(threads) void narrow_kernel(const float4* sums, uint4* out, std::size_t packets) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= packets) return;
  const float4 a = sums[2 * i], b = sums[2 * i + 1];
  const float x[packet] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  out[i] = shared::pack(x);
}

// 448 over the largest magnitude, which becomes the largest value of the type; 0 for zeros alone.
__host__ __device__ inline float to_e4m3(float amax) { return amax > 0 ? largest_e4m3 / amax : 0; }

// Rounds a token to e4m3, 128 elements to a scale, and writes it to the rows of all its slots; scales are [hidden / 128][stride].
// A block for each token.
static __global__ __launch_bounds__(threads) void quantize_tokens_kernel(const uint4* tokens, const int* row_of_slot, uint2* rows,
                                                                         float* scales, std::size_t stride, int top_k,
                                                                         int packets) {
  constexpr int lanes = block / packet;
  for (int first = static_cast<int>(threadIdx.x) - lane(); first < packets; first += threads) {
    const int i = first + lane();
    float x[packet] = {}, amax = 0;
    if (i < packets) shared::unpack(tokens[std::size_t{blockIdx.x} * packets + i], x);
#pragma unroll
    for (const float value : x) amax = fmaxf(amax, fabsf(value));
    amax = device::warp_max<lanes>(amax);
    if (i >= packets) continue;
    const float by = to_e4m3(amax);
    const uint2 codes{device::narrow_e4m3(x[0] * by, x[1] * by) | device::narrow_e4m3(x[2] * by, x[3] * by) << 16,
                      device::narrow_e4m3(x[4] * by, x[5] * by) | device::narrow_e4m3(x[6] * by, x[7] * by) << 16};
    for (int k = 0; k < top_k; ++k) {
      const auto row = static_cast<std::size_t>(row_of_slot[blockIdx.x * top_k + k]);
      rows[row * packets + i] = codes;
      if (i % lanes == 0) scales[i / lanes * stride + row] = amax / largest_e4m3;
    }
  }
}

// Rounds 128 x 128 of the weights to e4m3. blockIdx: the block along K, along N; packets of a row.
static __global__ __launch_bounds__(threads) void quantize_weights_kernel(const uint4* weights, uint2* codes, float* scales,
                                                                          int packets) {
  __shared__ float of_warps[device::largest_block_in_warps];
  constexpr int lanes = block / packet, each = block * lanes / threads;
  const std::size_t first = std::size_t{blockIdx.y} * block * packets + blockIdx.x * lanes;
  float x[each][packet], amax = 0;
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const unsigned at = threadIdx.x + i * threads;
    shared::unpack(weights[first + at / lanes * static_cast<std::size_t>(packets) + at % lanes], x[i]);
#pragma unroll
    for (const float value : x[i]) amax = fmaxf(amax, fabsf(value));
  }
  amax = device::block_max(amax, 0.0f, of_warps);
  const float by = to_e4m3(amax);
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const unsigned at = threadIdx.x + i * threads;
    codes[first + at / lanes * static_cast<std::size_t>(packets) + at % lanes] = {
        device::narrow_e4m3(x[i][0] * by, x[i][1] * by) | device::narrow_e4m3(x[i][2] * by, x[i][3] * by) << 16,
        device::narrow_e4m3(x[i][4] * by, x[i][5] * by) | device::narrow_e4m3(x[i][6] * by, x[i][7] * by) << 16};
  }
  if (threadIdx.x == 0) scales[std::size_t{blockIdx.y} * gridDim.x + blockIdx.x] = amax / largest_e4m3;
}

// An epilogue for a store in e4m3 of tiles that are 128 wide: a row's 128 results get a scale, which goes to
// [columns / 128][stride]. Four lanes have a row.
struct QuantizeRows {
  static constexpr int narrowing = 1;
  float* scales = nullptr;
  std::size_t stride = 0;
  template <int count>
  __device__ __forceinline__ void operator()(float (&sums)[count], const gemm::Fragment& at) const {
    static_assert(count * 2 == block, "a tile has as many columns as share a scale");
    float amax[2] = {};
#pragma unroll
    for (int i = 0; i < count; ++i) amax[i % 4 / 2] = fmaxf(amax[i % 4 / 2], fabsf(sums[i]));
#pragma unroll
    for (float& of_row : amax) of_row = device::warp_max<4>(of_row);
    const float by[2] = {to_e4m3(amax[0]), to_e4m3(amax[1])};
#pragma unroll
    for (int i = 0; i < count; ++i) sums[i] *= by[i % 4 / 2];
    const int half = static_cast<int>(device::lane_index()) % 4;
    if (half < 2 && at.row(half * 2) < at.row_end)
      scales[at.first_column / block * stride + at.row(half * 2)] = (half == 0 ? amax[0] : amax[1]) / largest_e4m3;
  }
};

}  // namespace aisp::ch20::layer
