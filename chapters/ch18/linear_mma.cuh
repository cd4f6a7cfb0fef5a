// SPDX-License-Identifier: Apache-2.0
// Gated linear attention in chunks of 64 tokens on mma.sync (sm_80), heads of 128 columns. A warp has 16 of the values' columns,
// and of the state, transposed, their 16 rows in its registers: as fp32 sums they have the layout of a product's right operand,
// so that the state meets the queries without a trip through shared memory.
#pragma once
#include <cuda_bf16.h>
#include <aisp/device/matrix.cuh>

#include "linear_decays.cuh"
#include "row_tiles.cuh"

namespace aisp::ch18::linear_mma {
namespace {

using bf16 = __nv_bfloat16;

using row_tiles::pitch;

constexpr int head_size = row_tiles::columns, tokens = 64, score_pitch = tokens * 2;

using State = float[head_size / 8][4];  // sums of products: 16 columns of the values, transposed, times all columns of the keys

struct alignas(1024) Tile {
  unsigned char q[tokens * pitch], k[tokens * pitch], v[tokens * pitch];
};
struct alignas(1024) Scores {
  unsigned char of_tile[tokens * score_pitch];
};

struct Warp {
  int index = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  unsigned by_rows = row_tiles::lanes_by_rows(), by_columns = row_tiles::lanes_by_columns();
};

// Computes with eight warps, of which each has 16 rows and 32 columns of the chunk's Q K^T, the weights of the values: scaled by
// `scale` and the decays between the two tokens, 0 above the diagonal. Whole blocks above it are not computed, and never read.
__device__ __forceinline__ void weigh(const Warp& warp, const Tile& tile, Scores& scores, const Decays<tokens>& decays,
                                      float scale) {
  const int first_row = warp.index % 4 * 16, first_column = warp.index / 4 * 32;
  if (first_column > first_row + 15) return;
  const unsigned q = device::shared_address(tile.q) + first_row * pitch,
                 k = device::shared_address(tile.k) + first_column * pitch;
  float sums[4][4] = {};
#pragma unroll
  for (int step = 0; step < head_size / 16; ++step) {
    unsigned x[4];
    device::load_matrices(x, q + (warp.by_rows ^ step * 32));
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      unsigned y[4];
      device::load_matrices(y, k + (warp.by_columns ^ step * 32) + j * 16 * pitch);
      device::mma_bf16(sums[2 * j], x, y[0], y[1]);
      device::mma_bf16(sums[2 * j + 1], x, y[2], y[3]);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + half * 8 + warp.lane / 4;
    const float of_row = decays.sums[row];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int column = first_column + j * 8 + warp.lane % 4 * 2;
      float weights[2];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        weights[i] =
            column + i <= row ? sums[j][2 * half + i] * scale * device::exp2_approximate(of_row - decays.sums[column + i]) : 0;
      *reinterpret_cast<unsigned*>(scores.of_tile + row * score_pitch + ((column / 8) ^ row % 8) * 16 + warp.lane % 4 * 4) =
          device::narrow_bf16(weights[0], weights[1]);
    }
  }
}

// The right operand of 16 columns of the keys, from the state.
__device__ __forceinline__ void narrow(unsigned (&words)[4], const State& state, int step) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    words[i] = device::narrow_bf16(state[2 * step + i % 2][i / 2 * 2], state[2 * step + i % 2][i / 2 * 2 + 1]);
}

// Results of 64 tokens times the warp's 16 columns.
using Results = float[4][2][4];

// From the state before the chunk; words(step) are its right operands.
template <class Words>
__device__ __forceinline__ void read_state(const Warp& warp, const Tile& tile, const Decays<tokens>& decays, float scale,
                                           Results& results, const Words& words) {
  const unsigned q = device::shared_address(tile.q) + warp.by_rows;
#pragma unroll
  for (int i = 0; i < 32; ++i) results[i / 8][i / 4 % 2][i % 4] = 0;
#pragma unroll
  for (int step = 0; step < head_size / 16; ++step) {
    unsigned y[4];
    words(y, step);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      unsigned x[4];
      device::load_matrices(x, (q ^ step * 32) + i * 16 * pitch);
      device::mma_bf16(results[i][0], x, y[0], y[1]);
      device::mma_bf16(results[i][1], x, y[2], y[3]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float factor = scale * decays.from_begin[i * 16 + half * 8 + warp.lane / 4];
#pragma unroll
      for (int j = 0; j < 4; ++j) results[i][j / 2][half * 2 + j % 2] *= factor;
    }
}

// 16 tokens of the warp's values: the right operand that follows them, and, with its middle words exchanged, the left one that
// has their columns as rows.
__device__ __forceinline__ void load_values(unsigned (&y)[4], const Warp& warp, const Tile& tile, int column_of_warp, int step) {
  device::load_matrices_transposed(y, device::shared_address(tile.v) + (warp.by_rows ^ column_of_warp * 32) + step * 16 * pitch);
}

// From the chunk's own tokens.
__device__ __forceinline__ void read_chunk(const Warp& warp, const Tile& tile, const Scores& scores, Results& results) {
  const unsigned from = device::shared_address(scores.of_tile) + warp.lane % 16 * score_pitch;
#pragma unroll
  for (int step = 0; step < tokens / 16; ++step) {
    unsigned y[4];
    load_values(y, warp, tile, warp.index, step);
#pragma unroll
    for (int i = step; i < 4; ++i) {
      unsigned x[4];
      device::load_matrices(x, from + i * 16 * score_pitch + ((2 * step + warp.lane / 16) ^ warp.lane % 8) * 16);
      device::mma_bf16(results[i][0], x, y[0], y[1]);
      device::mma_bf16(results[i][1], x, y[2], y[3]);
    }
  }
}

// The state after the chunk, from that before it. column_of_warp: which 16 of the tile's values are the warp's.
__device__ __forceinline__ void update(const Warp& warp, const Tile& tile, const Decays<tokens>& decays, int column_of_warp,
                                       State& state) {
  const unsigned k = device::shared_address(tile.k) + warp.by_rows;
  const float total = decays.total;
#pragma unroll
  for (int i = 0; i < head_size / 2; ++i) state[i / 4][i % 4] *= total;
#pragma unroll
  for (int step = 0; step < tokens / 16; ++step) {
    unsigned y[4], x[4];
    load_values(y, warp, tile, column_of_warp, step);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 factor = *reinterpret_cast<const float2*>(&decays.to_end[step * 16 + i / 2 * 8 + warp.lane % 4 * 2]);
      const unsigned word = y[i % 2 * 2 + i / 2];
      x[i] = device::narrow_bf16(__uint_as_float(word << 16) * factor.x, __uint_as_float(word & 0xFFFF0000u) * factor.y);
    }
#pragma unroll
    for (int j = 0; j < head_size / 16; ++j) {
      unsigned z[4];
      device::load_matrices_transposed(z, (k ^ j * 32) + step * 16 * pitch);
      device::mma_bf16(state[2 * j], x, z[0], z[1]);
      device::mma_bf16(state[2 * j + 1], x, z[2], z[3]);
    }
  }
}

// The warp's results as rows in shared memory, and whole rows from there to memory, by 256 threads.
__device__ __forceinline__ void stage(const Warp& warp, const Results& results, unsigned char* to) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<unsigned*>(to + (i * 16 + half * 8 + warp.lane / 4) * pitch +
                                     ((2 * warp.index + j) ^ warp.lane / 4) * 16 + warp.lane % 4 * 4) =
            device::narrow_bf16(results[i][j][2 * half], results[i][j][2 * half + 1]);
}
__device__ __forceinline__ void store(const unsigned char* from, bf16* to, int valid) {
  const int t = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (const int row = i * 16 + t / 16; row < valid)
      *reinterpret_cast<uint4*>(to + row * head_size + t % 16 * 8) =
          *reinterpret_cast<const uint4*>(from + row * pitch + (t % 16 ^ row % 8) * 16);
}

struct Operands {
  const bf16 *q, *k, *v;  // [head][token][column]
  const float* decays;    // [head][token]
  bf16* o;
  int length;
  float scale;
};

// The first tokens of a chunk.
struct Chunk {
  std::size_t token;  // among those of all heads
  int valid;          // from there on
  __device__ __forceinline__ Chunk(const Operands& of, unsigned head, int chunk)
      : token{static_cast<std::size_t>(head) * of.length + chunk * tokens}, valid{of.length - chunk * tokens} {}
};

constexpr int threads = 256;

struct alignas(1024) OnePass {
  Tile tiles[2];
  Scores scores;
  unsigned char o[tokens * pitch];
  Decays<tokens> decays[2];
};

// A block for each head, which walks its chunks and keeps the state.
__global__ __launch_bounds__(threads, 1) void one_pass_kernel(const __grid_constant__ Operands of) {
  extern __shared__ __align__(1024) unsigned char shared[];
  OnePass& memory = *reinterpret_cast<OnePass*>(shared);
  const Warp warp;
  const auto copy = [&](int chunk) {
    const Chunk at{of, blockIdx.x, chunk};
    Tile& tile = memory.tiles[chunk % 2];
    row_tiles::copy<tokens, threads>(tile.q, of.q + at.token * head_size, at.valid);
    row_tiles::copy<tokens, threads>(tile.k, of.k + at.token * head_size, at.valid);
    row_tiles::copy<tokens, threads>(tile.v, of.v + at.token * head_size, at.valid);
    device::commit_copies();
  };
  const int chunks = (of.length + tokens - 1) / tokens;
  DecayScan<tokens> scan;
  if (warp.index == 0) {
    const Chunk first{of, blockIdx.x, 0};
    scan.load(of.decays + first.token, first.valid);
    scan.scan(memory.decays[0]);
  }
  copy(0);
  State state = {};
  for (int chunk = 0; chunk < chunks; ++chunk) {
    device::wait_copies<0>();
    __syncthreads();  // the chunk is here, and nobody reads the last one any more, but all its results are in shared memory
    if (chunk + 1 < chunks) copy(chunk + 1);
    if (chunk + 1 < chunks && warp.index == 0) {
      const Chunk next{of, blockIdx.x, chunk + 1};
      scan.load(of.decays + next.token, next.valid);
    }
    if (chunk > 0) {
      const Chunk last{of, blockIdx.x, chunk - 1};
      store(memory.o, of.o + last.token * head_size, last.valid);
    }
    const Tile& tile = memory.tiles[chunk % 2];
    const Decays<tokens>& decays = memory.decays[chunk % 2];
    weigh(warp, tile, memory.scores, decays, of.scale);
    Results results;
    read_state(warp, tile, decays, of.scale, results, [&](unsigned(&words)[4], int step) { narrow(words, state, step); });
    __syncthreads();  // the weights are whole, and the last results are written
    read_chunk(warp, tile, memory.scores, results);
    stage(warp, results, memory.o);
    update(warp, tile, decays, warp.index, state);
    if (chunk + 1 < chunks && warp.index == 0) scan.scan(memory.decays[(chunk + 1) % 2]);
  }
  __syncthreads();
  const Chunk last{of, blockIdx.x, chunks - 1};
  store(memory.o, of.o + last.token * head_size, last.valid);
}

// The same in two kernels. In memory a state is what the right operands are: [head][chunk][warp][step][lane] words of bf16.
constexpr int half_threads = 128;

struct alignas(1024) States {
  Tile tiles[2];  // without queries
  Decays<tokens> decays[2];
};

__device__ __forceinline__ std::size_t state_of(unsigned head, int chunks, int chunk, int warp) {
  return ((static_cast<std::size_t>(head) * chunks + chunk) * 8 + warp) * (head_size / 16) * 32;
}

// The states before all chunks: two blocks for each head, each half of the values' columns.
__global__ __launch_bounds__(half_threads, 2) void states_kernel(const __grid_constant__ Operands of, uint4* states) {
  extern __shared__ __align__(1024) unsigned char shared[];
  States& memory = *reinterpret_cast<States*>(shared);
  const Warp warp;
  const int of_values = static_cast<int>(blockIdx.x) * 4 + warp.index;  // which 16 columns
  const auto copy = [&](int chunk) {
    const Chunk at{of, blockIdx.y, chunk};
    Tile& tile = memory.tiles[chunk % 2];
    row_tiles::copy<tokens, half_threads>(tile.k, of.k + at.token * head_size, at.valid);
    row_tiles::copy<tokens, half_threads>(tile.v, of.v + at.token * head_size, at.valid);
    device::commit_copies();
  };
  const int chunks = (of.length + tokens - 1) / tokens;
  State state = {};
  copy(0);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    if (warp.index == 0) {
      const Chunk at{of, blockIdx.y, chunk};
      DecayScan<tokens> scan;
      scan.load(of.decays + at.token, at.valid);
      scan.scan(memory.decays[chunk % 2]);
    }
    device::wait_copies<0>();
    __syncthreads();
    if (chunk + 1 < chunks) copy(chunk + 1);
#pragma unroll
    for (int step = 0; step < head_size / 16; ++step) {
      unsigned words[4];
      narrow(words, state, step);
      states[state_of(blockIdx.y, chunks, chunk, of_values) + step * 32 + warp.lane] =
          uint4{words[0], words[1], words[2], words[3]};
    }
    update(warp, memory.tiles[chunk % 2], memory.decays[chunk % 2], of_values, state);
  }
}

struct alignas(1024) OneChunk {
  Tile tile;
  Scores scores;
  Decays<tokens> decays;
};

// All chunks at once, a block for each.
__global__ __launch_bounds__(threads, 2) void chunks_kernel(const __grid_constant__ Operands of, const uint4* states) {
  extern __shared__ __align__(1024) unsigned char shared[];
  OneChunk& memory = *reinterpret_cast<OneChunk*>(shared);
  const Warp warp;
  const Chunk at{of, blockIdx.y, static_cast<int>(blockIdx.x)};
  row_tiles::copy<tokens, threads>(memory.tile.q, of.q + at.token * head_size, at.valid);
  row_tiles::copy<tokens, threads>(memory.tile.k, of.k + at.token * head_size, at.valid);
  row_tiles::copy<tokens, threads>(memory.tile.v, of.v + at.token * head_size, at.valid);
  device::commit_copies();
  uint4 state[head_size / 16];
#pragma unroll
  for (int step = 0; step < head_size / 16; ++step)
    state[step] = states[state_of(blockIdx.y, static_cast<int>(gridDim.x), static_cast<int>(blockIdx.x), warp.index) + step * 32 +
                         warp.lane];
  if (warp.index == 0) {
    DecayScan<tokens> scan;
    scan.load(of.decays + at.token, at.valid);
    scan.scan(memory.decays);
  }
  device::wait_copies<0>();
  __syncthreads();
  weigh(warp, memory.tile, memory.scores, memory.decays, of.scale);
  Results results;
  read_state(warp, memory.tile, memory.decays, of.scale, results, [&](unsigned(&words)[4], int step) {
    words[0] = state[step].x, words[1] = state[step].y, words[2] = state[step].z, words[3] = state[step].w;
  });
  __syncthreads();  // the weights are whole, and nobody reads Q any more
  read_chunk(warp, memory.tile, memory.scores, results);
  stage(warp, results, memory.tile.q);
  __syncthreads();
  store(memory.tile.q, of.o + at.token * head_size, at.valid);
}

}  // namespace
}  // namespace aisp::ch18::linear_mma
