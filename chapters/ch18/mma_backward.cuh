// SPDX-License-Identifier: Apache-2.0
// The gradients of causal attention on mma.sync (sm_80), the structure of FlashAttention-2: a block keeps 128 keys and their
// values and takes tile after tile of 64 query rows, which arrive by cp.async one tile ahead. Scores are transposed, keys as
// rows. A warp has 32 keys times 32 rows of them, 32 keys times 64 columns of dK and dV, and 32 rows times 32 columns of a tile's
// dQ. Heads of 128 columns; any number of rows.
#pragma once
#include <aisp/device/vector.cuh>

#include "attention/backward_shared.cuh"
#include "row_tiles.cuh"

namespace aisp::ch18::mma_backward {

using attention::bf16, attention::Causal, attention::KeyBlock;

using row_tiles::pitch;

constexpr int head_size = row_tiles::columns, threads = 256, keys = attention::tile_keys, rows = 64;
constexpr int score_pitch = rows * 2;  // bytes

struct alignas(1024) Memory {
  unsigned char k[keys * pitch], v[keys * pitch], q[2][rows * pitch], d_o[2][rows * pitch];
  unsigned char p[keys * score_pitch], d_s[keys * score_pitch];  // keys are rows
  float log_sums[2][rows], deltas[2][rows];
};

struct Operands {
  const bf16 *q, *k, *v, *d_o;  // [head][row][column]
  bf16 *d_k, *d_v;
};

// The addresses that a lane of ldmatrix reads; for dS^T, which is transposed on the way, two groups of eight keys.
struct Lanes {
  unsigned by_rows = row_tiles::lanes_by_rows(), by_columns = row_tiles::lanes_by_columns(), of_d_s;
  __device__ __forceinline__ Lanes() {
    const unsigned lane = threadIdx.x % 32;
    of_d_s = (lane / 16 * 8 + lane % 8) * score_pitch + (lane / 8 % 2 ^ lane % 8) * 16;
  }
};

// sums += A B for 32 x (16 * pairs): a(i, step) and b(j, step) are a lane's addresses of the i-th 16 rows of A and the j-th 16
// columns of B. transposed_*: whether ldmatrix must.
template <int steps, int pairs, bool transposed_a, bool transposed_b, class A, class B>
__device__ __forceinline__ void multiply(float (&sums)[2][pairs * 2][4], const A& a, const B& b) {
#pragma unroll
  for (int step = 0; step < steps; ++step) {
    unsigned x[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if constexpr (transposed_a) device::load_matrices_transposed(x[i], a(i, step));
      else device::load_matrices(x[i], a(i, step));
#pragma unroll
    for (int j = 0; j < pairs; ++j) {
      unsigned y[4];
      if constexpr (transposed_b) device::load_matrices_transposed(y, b(j, step));
      else device::load_matrices(y, b(j, step));
#pragma unroll
      for (int i = 0; i < 4; ++i) device::mma_bf16(sums[i % 2][2 * j + i / 2], x[i % 2], y[i / 2 * 2], y[i / 2 * 2 + 1]);
    }
  }
}

template <int count>
__device__ __forceinline__ void clear(float (&sums)[2][count][4]) {
#pragma unroll
  for (int i = 0; i < 8 * count; ++i) sums[i / (4 * count)][i / 4 % count][i % 4] = 0;
}

// A tile of P or dS to shared memory: the warp's 32 keys times 32 rows.
__device__ __forceinline__ void store_scores(unsigned char* to, const float (&x)[2][4][4], int first_key, int first_row) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<unsigned*>(to + (first_key + i * 16 + half * 8 + lane / 4) * score_pitch +
                                     ((first_row / 8 + j) ^ lane / 4) * 16 + lane % 4 * 4) =
            device::narrow_bf16(x[i][j][2 * half], x[i][j][2 * half + 1]);
}

// dK or dV of the warp's keys and columns, over what lay in `memory`; nobody reads that any more.
__device__ __forceinline__ void store_gradients(unsigned char* memory, const float (&sums)[2][8][4], bf16* to, int first_key,
                                                int first_chunk, int valid) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<unsigned*>(memory + (first_key + i * 16 + half * 8 + lane / 4) * pitch +
                                     ((first_chunk + j) ^ lane / 4) * 16 + lane % 4 * 4) =
            device::narrow_bf16(sums[i][j][2 * half], sums[i][j][2 * half + 1]);
  __syncwarp();
#pragma unroll 2
  for (int key = first_key + lane / 8; key < first_key + 32; key += 4)
    if (key < valid)
      *reinterpret_cast<uint4*>(to + key * head_size + (first_chunk + lane % 8) * 8) =
          *reinterpret_cast<const uint4*>(memory + key * pitch + ((first_chunk + lane % 8) ^ key % 8) * 16);
}

// A block for each tile of keys and head; as many keys as queries. skips_hidden: begins with the first tile of rows that sees any
// of its keys. The kernels before and after it are the engine's.
template <bool skips_hidden>
__global__ __launch_bounds__(threads, 1) void backward_kernel(const __grid_constant__ attention::Backward<Causal> work,
                                                              const __grid_constant__ Operands of) {
  extern __shared__ __align__(1024) unsigned char shared[];
  Memory& memory = *reinterpret_cast<Memory*>(shared);
  const KeyBlock block = attention::FirstKeysFirst::block(work, static_cast<int>(blockIdx.x));
  const int head = block.sequence * work.heads + block.kv_head, length = work.lengths.queries;
  const std::size_t of_head = static_cast<std::size_t>(head) * length * head_size;
  const std::size_t of_keys = of_head + static_cast<std::size_t>(block.first_key) * head_size;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int own_keys = warp % 4 * 32, own_rows = warp / 4 * 32;  // of a tile's scores
  const Lanes lanes;

  const auto copy_tile = [&](int tile, int slot) {
    row_tiles::copy<rows, threads>(memory.q[slot], of.q + of_head + static_cast<std::size_t>(tile) * rows * head_size,
                                   length - tile * rows);
    row_tiles::copy<rows, threads>(memory.d_o[slot], of.d_o + of_head + static_cast<std::size_t>(tile) * rows * head_size,
                                   length - tile * rows);
    const int t = static_cast<int>(threadIdx.x);
    if (t < rows / 2) {
      const float* const from = t < rows / 4 ? work.padded_log_sums : work.deltas;
      float* const to = t < rows / 4 ? memory.log_sums[slot] : memory.deltas[slot];
      device::copy_async_16(to + t % (rows / 4) * 4,
                            from + work.tile(block.sequence, block.kv_head, tile) * rows + t % (rows / 4) * 4);
    }
    device::commit_copies();
  };
  row_tiles::copy<keys, threads>(memory.k, of.k + of_keys, length - block.first_key);
  row_tiles::copy<keys, threads>(memory.v, of.v + of_keys, length - block.first_key);
  int tile = skips_hidden ? block.first_key / rows : 0, slot = 0;
  copy_tile(tile, slot);

  float d_k[2][8][4], d_v[2][8][4];
  clear(d_k), clear(d_v);
  const unsigned k = device::shared_address(memory.k), v = device::shared_address(memory.v);
  const unsigned p = device::shared_address(memory.p), d_s = device::shared_address(memory.d_s);
  for (; tile < work.row_tiles(); ++tile, slot ^= 1) {
    device::wait_copies<0>();
    __syncthreads();  // the tile is here, and nobody reads the last one any more
    if (tile + 1 < work.row_tiles()) copy_tile(tile + 1, slot ^ 1);
    const unsigned q = device::shared_address(memory.q[slot]), d_o = device::shared_address(memory.d_o[slot]);
    {
      float scores[2][4][4], d_p[2][4][4];
      const auto of_rows = [&](unsigned operand) {
        return [=](int j, int step) { return operand + ((lanes.by_columns ^ step * 32) + (own_rows + j * 16) * pitch); };
      };
      const auto of_keys = [&](unsigned operand) {
        return [=](int i, int step) { return operand + ((lanes.by_rows ^ step * 32) + (own_keys + i * 16) * pitch); };
      };
      clear(scores);
      multiply<head_size / 16, 2, false, false>(scores, of_keys(k), of_rows(q));
      clear(d_p);
      multiply<head_size / 16, 2, false, false>(d_p, of_keys(v), of_rows(d_o));
      const bool tested = block.first_key + keys - 1 > tile * rows;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = own_rows + j * 8 + lane % 4 * 2;
        const float2 log_sum = *reinterpret_cast<const float2*>(&memory.log_sums[slot][row]);
        const float2 delta = *reinterpret_cast<const float2*>(&memory.deltas[slot][row]);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          float &score = scores[i / 4][j][i % 4], &derived = d_p[i / 4][j][i % 4];
          score = device::exp2_approximate(fmaf(score, work.scale * attention::log2_e, -(i % 2 == 0 ? log_sum.x : log_sum.y)));
          if (tested && block.first_key + own_keys + i / 2 * 8 + lane / 4 > tile * rows + row + i % 2) score = 0;
          derived = score * (derived - (i % 2 == 0 ? delta.x : delta.y));
        }
      }
      store_scores(memory.p, scores, own_keys, own_rows);
      store_scores(memory.d_s, d_p, own_keys, own_rows);
    }
    __syncthreads();  // P and dS are whole
    const auto of_scores = [&](unsigned operand) {
      return [=](int i, int step) {
        return operand + (own_keys + i * 16 + lane % 16) * score_pitch + ((step * 2 + lane / 16) ^ lane % 8) * 16;
      };
    };
    const auto of_columns = [&](unsigned operand, int chunk) {
      return [=](int j, int step) { return operand + ((lanes.by_rows ^ (chunk + j * 2) * 16) + step * 16 * pitch); };
    };
    multiply<rows / 16, 4, false, true>(d_v, of_scores(p), of_columns(d_o, own_rows / 4));
    float d_q[2][4][4];
    clear(d_q);
    multiply<keys / 16, 2, true, true>(
        d_q, [&](int i, int step) { return d_s + ((lanes.of_d_s ^ (own_rows / 8 + i * 2) * 16) + step * 16 * score_pitch); },
        of_columns(k, own_keys / 8));
    float* const d_q_sums = work.d_q_sums + work.tile(block.sequence, block.kv_head, tile) * rows * head_size;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)  // in the order in which the engine has them: by 8 columns, 16 rows and lanes
        device::add_to_global(d_q_sums + (((own_keys / 8 + j) * 4 + own_rows / 16 + i) * 32 + lane) * 4, d_q[i][j][0],
                              d_q[i][j][1], d_q[i][j][2], d_q[i][j][3]);
    multiply<rows / 16, 4, false, true>(d_k, of_scores(d_s), of_columns(q, own_rows / 4));
  }
#pragma unroll
  for (int i = 0; i < 64; ++i) d_k[i / 32][i / 4 % 8][i % 4] *= work.scale;
  __syncthreads();  // nobody reads K any more
  const int valid = length - block.first_key;
  store_gradients(memory.k, d_k, of.d_k + of_keys, own_keys, own_rows / 4, valid);
  store_gradients(memory.v, d_v, of.d_v + of_keys, own_keys, own_rows / 4, valid);
}

}  // namespace aisp::ch18::mma_backward
