// SPDX-License-Identifier: Apache-2.0
// Decoding over keys and values of all heads, as they are cached where no projection is absorbed: nearly nothing but a read.
#pragma once
#include <cuda_bf16.h>
#include "latent_projections.cuh"
#include "rows.cuh"

namespace aisp::ch18 {

// Each head with a cache of its own: [sequence][head][row] of keys and of values. Eight lanes have a row, every four rows of a
// warp a state, which are merged at the end. blockIdx.x: the head; blockIdx.y: the sequence.
constexpr int expanded_threads = 128, expanded_states = expanded_threads / 8, rows_at_once = 4;
struct Expanded {
  const bf16 *q, *k, *v;
  const int* lengths;
  bf16* o;
  int tokens;
  float scale_log2;
};
static __global__ __launch_bounds__(expanded_threads) void expanded_kernel(const __grid_constant__ Expanded work) {
  constexpr int key_pieces = query_size / 64, value_pieces = value_size / 64;
  __shared__ float values_of[expanded_states][value_size], maximum_of[expanded_states], sum_of[expanded_states];
  const int state = static_cast<int>(threadIdx.x) / 8, lane = static_cast<int>(threadIdx.x) % 8;
  const std::size_t head = std::size_t{blockIdx.y} * gridDim.x + blockIdx.x;
  const int length = work.lengths[blockIdx.y];
  const bf16 *const k = work.k + head * work.tokens * query_size + lane * 8, *const v = work.v + head * work.tokens * value_size +
                                                                                        lane * 8;
  float q[key_pieces][8], sums[value_pieces][8] = {}, maximum = -attention::infinity, sum = 0;
#pragma unroll
  for (int i = 0; i < key_pieces; ++i) {
    shared::unpack(packet(work.q + head * query_size + lane * 8 + i * 64), q[i]);
#pragma unroll
    for (float& x : q[i]) x *= work.scale_log2;
  }
  for (int first = state / 4 * 16; first < length; first += expanded_states * rows_at_once) {
    uint4 keys[rows_at_once][key_pieces], values[rows_at_once][value_pieces];
    const auto row_of = [&](int i) { return first + i * 4 + state % 4; };
#pragma unroll
    for (int r = 0; r < rows_at_once; ++r) {
      const std::size_t row = min(row_of(r), length - 1);
#pragma unroll
      for (int i = 0; i < key_pieces; ++i) keys[r][i] = attention::request(k + row * query_size + i * 64);
#pragma unroll
      for (int i = 0; i < value_pieces; ++i) values[r][i] = attention::request(v + row * value_size + i * 64);
    }
    float scores[rows_at_once], raised = maximum;
#pragma unroll
    for (int r = 0; r < rows_at_once; ++r) {
      float dot = 0;
#pragma unroll
      for (int i = 0; i < key_pieces; ++i) {
        float key[8];
        shared::unpack(keys[r][i], key);
#pragma unroll
        for (int d = 0; d < 8; ++d) dot = fmaf(q[i][d], key[d], dot);
      }
      dot = device::warp_sum<8>(dot);
      scores[r] = row_of(r) < length ? dot : -attention::infinity;
      raised = fmaxf(raised, scores[r]);
    }
    const float factor = device::exp2_approximate(maximum - attention::base_of(raised));
    maximum = raised;
    sum *= factor;
#pragma unroll
    for (float& x : scores) x = device::exp2_approximate(x - attention::base_of(raised)), sum += x;
#pragma unroll
    for (int i = 0; i < value_pieces; ++i) {
#pragma unroll
      for (float& x : sums[i]) x *= factor;
#pragma unroll
      for (int r = 0; r < rows_at_once; ++r) {
        float value[8];
        shared::unpack(values[r][i], value);
#pragma unroll
        for (int d = 0; d < 8; ++d) sums[i][d] = fmaf(scores[r], value[d], sums[i][d]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < value_pieces * 8; ++i) values_of[state][i / 8 * 64 + lane * 8 + i % 8] = sums[i / 8][i % 8];
  if (lane == 0) maximum_of[state] = maximum, sum_of[state] = sum;
  __syncthreads();
  float highest = -attention::infinity, value = 0, whole = 0;
  for (const float of : maximum_of) highest = fmaxf(highest, of);
  for (int i = 0; i < expanded_states; ++i) {
    const float weight = device::exp2_approximate(maximum_of[i] - attention::base_of(highest));
    whole += weight * sum_of[i];
    value += weight * values_of[i][threadIdx.x];
  }
  work.o[head * value_size + threadIdx.x] = __float2bfloat16_rn(value * attention::reciprocal(whole));
}

// The rotated part of a token's key, the same for all heads, to each of them. blockIdx.x: the token; blockIdx.y: the sequence.
constexpr int spread_threads = 256;
static __global__ __launch_bounds__(spread_threads) void spread_kernel(const bf16* latents, bf16* k, int heads) {
  constexpr int pieces = rotated_size / 8;
  const std::size_t token = blockIdx.x, tokens = gridDim.x, sequence = blockIdx.y;
  for (int i = static_cast<int>(threadIdx.x); i < heads * pieces; i += spread_threads)
    *reinterpret_cast<uint4*>(k + ((sequence * heads + i / pieces) * tokens + token) * query_size + plain_size + i % pieces * 8) =
        packet(latents + (sequence * tokens + token) * attention::mla_key_size + latent_size + i % pieces * 8);
}

}  // namespace aisp::ch18
