// SPDX-License-Identifier: Apache-2.0
// The projections around attention over a latent cache: a head's two matrices of 128 x 512, of which one takes latents to keys
// and the other one to values. Absorbed, the first is applied to the query instead and the second to the result. A block has a
// head; its matrix is in registers at once, for all sequences.
#pragma once
#include <aisp/device/fence.cuh>
#include <aisp/device/vector.cuh>

#include "attention/decode.cuh"
#include "attention/mla.cuh"

namespace aisp::ch18 {

using attention::bf16, attention::latent_size;

constexpr int plain_size = 128, rotated_size = 64, query_size = plain_size + rotated_size, value_size = 128;
constexpr int matrix_rows = plain_size + value_size;  // of a head: [plain_size + value_size][latent_size]
constexpr int projection_threads = 256, projection_rows = 16;

__device__ __forceinline__ const uint4& packet(const bf16* at) { return *reinterpret_cast<const uint4*>(at); }

// [sequence][head][query_size] to [sequence][head][mla_key_size]: q W of the plain part, the rotated one as it is. Dimensions of
// the plain part may be summed up in any order: a lane takes 32 neighbouring ones of the query, four in each step, and the same
// rows of the matrix. A warp has 64 columns.
static __global__ __launch_bounds__(projection_threads, 1) void absorb_kernel(const bf16* q, const bf16* matrices, bf16* to,
                                                                              int sequences) {
  const std::size_t head = blockIdx.x, heads = gridDim.x;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  if constexpr (AISP_SM >= 90) device::let_dependents_start();  // which wait for what is written here
  const bf16* const from = matrices + (head * matrix_rows + t * 32) * latent_size + warp * 64 + g * 8;
  uint4 tile[8][4];
#pragma unroll
  for (int i = 0; i < 32; ++i) tile[i / 4][i % 4] = attention::request(from + i * latent_size);
  for (int first = 0; first < sequences; first += projection_rows) {
    uint4 own[2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = first + half * 8 + g;
        own[half][i] = uint4{0, 0, 0, 0};
        if (row < sequences) own[half][i] = packet(q + (row * heads + head) * query_size + t * 32 + i * 8);
      }
    float values[8][4] = {};
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      const auto word_of = [&](int half, int i) { return attention::word(own[half][step / 2], step % 2 * 2 + i); };
      const unsigned a[4] = {word_of(0, 0), word_of(1, 0), word_of(0, 1), word_of(1, 1)};
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const unsigned zip = j % 2 == 0 ? 0x5410 : 0x7632;
        const auto pair_of = [&](int i) {
          return __byte_perm(attention::word(tile[step][i], j / 2), attention::word(tile[step][i + 1], j / 2), zip);
        };
        device::mma_bf16(values[j], a, pair_of(0), pair_of(2));
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first + i / 2 * 8 + g;
      if (row >= sequences) continue;
      uint4 out;
      out.x = device::narrow_bf16(values[0][i], values[1][i]), out.y = device::narrow_bf16(values[2][i], values[3][i]);
      out.z = device::narrow_bf16(values[4][i], values[5][i]), out.w = device::narrow_bf16(values[6][i], values[7][i]);
      *reinterpret_cast<uint4*>(to + (row * heads + head) * attention::mla_key_size + warp * 64 + t * 16 + i % 2 * 8) = out;
    }
    const int row = first + static_cast<int>(threadIdx.x) / 8, column = static_cast<int>(threadIdx.x) % 8 * 8;
    if (threadIdx.x < projection_rows * 8 && row < sequences)
      *reinterpret_cast<uint4*>(to + (row * heads + head) * attention::mla_key_size + latent_size + column) =
          packet(q + (row * heads + head) * query_size + plain_size + column);
  }
}

// The states of a row, by a warp: lane l has the columns 128 i + 4 l to 4 l + 3 of the result.
template <class Splits>
__device__ __forceinline__ void merge_latents(const Splits& splits, const float* parts, const float* log_sums, int heads,
                                              int sequence, int head, float4 (&values)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, begin = splits.first_state(sequence),
            end = splits.first_state(sequence + 1);
  const auto at = [&](int state) { return std::size_t(state) * heads + head; };
  float maximum = -attention::infinity, sum = 0;
  for (int state = begin; state < end; ++state) maximum = fmaxf(maximum, log_sums[at(state)]);
#pragma unroll
  for (float4& value : values) value = float4{0, 0, 0, 0};
  for (int state = begin; state < end; ++state) {
    const float weight = device::exp2_approximate((log_sums[at(state)] - attention::base_of(maximum)) * attention::log2_e);
    sum += weight;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 x = *reinterpret_cast<const float4*>(parts + at(state) * latent_size + i * 128 + lane * 4);
      values[i].x = fmaf(weight, x.x, values[i].x), values[i].y = fmaf(weight, x.y, values[i].y);
      values[i].z = fmaf(weight, x.z, values[i].z), values[i].w = fmaf(weight, x.w, values[i].w);
    }
  }
  const float factor = attention::reciprocal(sum);
#pragma unroll
  for (float4& value : values) value.x *= factor, value.y *= factor, value.z *= factor, value.w *= factor;
}
__device__ __forceinline__ void store_latents(bf16* row, const float4 (&values)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    *reinterpret_cast<uint2*>(row + i * 128 + static_cast<int>(threadIdx.x) % 32 * 4) =
        uint2{device::narrow_bf16(values[i].x, values[i].y), device::narrow_bf16(values[i].z, values[i].w)};
}

// To [sequence][head][latent_size], a warp for each row; blockIdx.y: the sequence.
constexpr int merge_warps = 4;
template <bool dependent, class Splits>
__global__ __launch_bounds__(merge_warps * 32) void merge_latents_kernel(Splits splits, const float* parts, const float* log_sums,
                                                                         int heads, bf16* to) {
  const int sequence = static_cast<int>(blockIdx.y), head = static_cast<int>(blockIdx.x * merge_warps + threadIdx.x / 32);
  if constexpr (dependent) {
    device::let_dependents_start();
    device::wait_for_previous_kernel();
  }
  if (head >= heads) return;
  float4 values[4];
  merge_latents(splits, parts, log_sums, heads, sequence, head, values);
  store_latents(to + (std::size_t(sequence) * heads + head) * latent_size, values);
}

// The factors of the projection to values: merged results, or states that each block merges for itself.
struct MergedLatents {
  const bf16* latents;
  __device__ __forceinline__ const bf16* rows(bf16*, int sequences, int first, int head, int heads, std::size_t& pitch) const {
    pitch = std::size_t(heads) * latent_size;
    return latents + (std::size_t(min(first, sequences - 1)) * heads + head) * latent_size;
  }
};
template <class Splits>
struct LatentStates {
  Splits splits;
  const float *parts, *log_sums;
  __device__ __forceinline__ const bf16* rows(bf16* own, int sequences, int first, int head, int heads,
                                              std::size_t& pitch) const {
    pitch = latent_size + 8;
    __syncthreads();  // nobody reads the rows before any more
    for (int row = static_cast<int>(threadIdx.x) / 32; row < min(projection_rows, sequences - first);
         row += projection_threads / 32) {
      float4 values[4];
      merge_latents(splits, parts, log_sums, heads, first + row, head, values);
      store_latents(own + row * pitch, values);
    }
    __syncthreads();
    return own;
  }
};

// To [sequence][head][value_size]. A warp has 16 columns of the result, rows of the matrix; the order of latent dimensions is
// free here, too.
template <bool dependent, class Latents>
__global__ __launch_bounds__(projection_threads, 1) void project_kernel(Latents latents, const bf16* matrices, bf16* to,
                                                                        int sequences) {
  __shared__ __align__(16) bf16 own_rows[projection_rows * (latent_size + 8)];
  const int head = static_cast<int>(blockIdx.x), heads = static_cast<int>(gridDim.x);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const bf16* const from = matrices + (std::size_t(head) * matrix_rows + plain_size + warp * 16 + g) * latent_size + t * 8;
  uint4 tile[2][16];
#pragma unroll
  for (int i = 0; i < 32; ++i) tile[i / 16][i % 16] = attention::request(from + i / 16 * 8 * latent_size + i % 16 * 32);
  if constexpr (dependent) device::wait_for_previous_kernel();
  for (int first = 0; first < sequences; first += projection_rows) {
    std::size_t pitch = 0;
    const bf16* const rows = latents.rows(own_rows, sequences, first, head, heads, pitch) + t * 8;
    float values[2][4] = {};
    // Rows after the last sequence are the first one's, and nobody keeps them.
    const std::size_t upper = first + g < sequences ? g * pitch : 0, lower = first + g + 8 < sequences ? (g + 8) * pitch : 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const uint4 x = packet(rows + upper + i * 32), y = packet(rows + lower + i * 32);
      const unsigned low[4] = {x.x, y.x, x.y, y.y}, high[4] = {x.z, y.z, x.w, y.w};
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        device::mma_bf16(values[n], low, tile[n][i].x, tile[n][i].y);
        device::mma_bf16(values[n], high, tile[n][i].z, tile[n][i].w);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (const int row = first + i % 2 * 8 + g; row < sequences)
        *reinterpret_cast<unsigned*>(to + (std::size_t(row) * heads + head) * value_size + warp * 16 + i / 2 * 8 + t * 2) =
            device::narrow_bf16(values[i / 2][i % 2 * 2], values[i / 2][i % 2 * 2 + 1]);
  }
}

}  // namespace aisp::ch18
