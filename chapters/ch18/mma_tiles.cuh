// SPDX-License-Identifier: Apache-2.0
// Attention on mma.sync (sm_80), the structure of FlashAttention-2: a warp owns 32 query rows whose scores never leave registers,
// K and V arrive by cp.async one product ahead, from the first tile of keys to the last. How scores become weights is the
// caller's choice. Heads of 128 columns; any number of rows.
//
// The 16-byte chunk c of a row lies at c ^ (row % 8), so that ldmatrix meets no bank twice.
#pragma once
#include <aisp/device/async_copy.cuh>
#include <aisp/device/matrix.cuh>

#include "attention/softmax.cuh"

namespace aisp::ch18::mma_tiles {

using attention::bf16, attention::infinity, attention::Rows;

constexpr int head_size = 128, threads = 128, warp_rows = 32, query_rows = threads / 32 * warp_rows, keys = 64;
constexpr int pitch = head_size * 2, row_chunks = pitch / 16;  // bytes of a row, and 16-byte chunks
constexpr int shared_bytes = (query_rows + 2 * keys) * pitch;

// The thread's index, asked for again, so that no register holds what follows from it over the loop: sums and scores take 192 of
// a thread's 255, the fragments in flight nearly all others.
__device__ __forceinline__ int thread_again() {
  int t = static_cast<int>(threadIdx.x);
  asm volatile("" : "+r"(t));
  return t;
}

// Rows of a tile, each thread a chunk of every eighth of them, as a group of copies of its own. `chunk` is that where the tile
// begins in `data`; rows from `valid` on are not of this head and become zeros.
template <int rows>
__device__ __forceinline__ void copy_rows(unsigned char* shared, const bf16* data, unsigned chunk, int valid) {
  const int t = static_cast<int>(threadIdx.x), row = t / 16;
  unsigned char* const to = shared + row * pitch + (t % 16 ^ row) * 16;
  const uint4* const from = reinterpret_cast<const uint4*>(data) + (chunk + static_cast<unsigned>(t));
  if (valid >= rows) {
#pragma unroll
    for (int i = 0; i < rows; i += 8) device::copy_async_16(to + i * pitch, from + i * row_chunks);
  } else {
#pragma unroll 1
    for (int i = 0; i < rows; i += 8) {
      const bool is_valid = row + i < valid;
      device::copy_async_16_or_zero(to + i * pitch, is_valid ? from + i * row_chunks : reinterpret_cast<const uint4*>(data),
                                    is_valid);
    }
  }
  device::commit_copies();
}

// The addresses that a lane of ldmatrix reads. For Q 16 rows times two chunks, for K (which is read along its rows) two groups of
// eight rows times two chunks; V lies as far after K as K is long, and is read as Q is.
struct Lanes {
  std::uint32_t q, k;
  __device__ __forceinline__ explicit Lanes(const unsigned char* memory) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    q = device::shared_address(memory) + (warp * warp_rows + lane % 16) * pitch + (lane / 16 ^ lane % 8) * 16;
    k = device::shared_address(memory + query_rows * pitch) + (lane / 16 * 8 + lane % 8) * pitch + (lane / 8 % 2 ^ lane % 8) * 16;
  }
};

// scores = Q K^T for the warp's two times 16 rows; `behind_k`: bytes from the first tile of keys to this one.
__device__ __forceinline__ void multiply_keys(float (&scores)[2][keys / 2], const Lanes& lanes, int behind_k = 0) {
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < keys / 2; ++j) scores[i][j] = 0;
#pragma unroll
  for (int step = 0; step < head_size / 16; ++step) {
    unsigned x[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) device::load_matrices(x[i], (lanes.q ^ step * 32) + i * 16 * pitch);
#pragma unroll
    for (int j = 0; j < keys / 16; ++j) {
      unsigned y[4];
      device::load_matrices(y, (lanes.k ^ step * 32) + j * 16 * pitch + behind_k);
#pragma unroll
      for (int i = 0; i < 4; ++i) device::mma_bf16(&scores[i % 2][8 * j + i / 2 * 4], x[i % 2], y[i / 2 * 2], y[i / 2 * 2 + 1]);
    }
  }
}

// sums += P V, with P as the scores' registers have it.
__device__ __forceinline__ void multiply_values(float (&sums)[2][head_size / 2], const float (&weights)[2][keys / 2],
                                                const Lanes& lanes) {
  const int warp = thread_again() / 32;
#pragma unroll
  for (int step = 0; step < keys / 16; ++step) {
    unsigned p[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) attention::narrow(p[i], weights[i], step);
#pragma unroll
    for (int j = 0; j < head_size / 16; ++j) {
      unsigned y[4];
      device::load_matrices_transposed(y, (lanes.q ^ j * 32) + (query_rows + keys - warp * warp_rows + step * 16) * pitch);
#pragma unroll
      for (int i = 0; i < 4; ++i) device::mma_bf16(&sums[i % 2][8 * j + i / 2 * 4], p[i % 2], y[i / 2 * 2], y[i / 2 * 2 + 1]);
    }
  }
}

// Hides the columns from `end` on.
__device__ __forceinline__ void hide_columns(float (&scores)[keys / 2], int end) {
  const int column = thread_again() % 4 * 2;
#pragma unroll
  for (int i = 0; i < keys / 2; ++i)
    if (i / 4 * 8 + i % 2 + column >= end) scores[i] = -infinity;
}

// The places of tiles of keys: one after the other from a chunk on, or in pages of 16 rows, with `head_chunk` before a
// head's, that a table names.
struct InOnePiece {
  unsigned chunk;
  __device__ __forceinline__ void copy_tile(unsigned char* shared, const bf16* data, int valid) const {
    copy_rows<keys>(shared, data, chunk, valid);
  }
  __device__ __forceinline__ void next_tile() { chunk += keys * row_chunks; }
};
template <unsigned page_chunks>
struct InPages {
  static constexpr int rows = 16;
  const int* table;
  int entry;
  unsigned head_chunk;
  __device__ __forceinline__ void copy_tile(unsigned char* shared, const bf16* data, int valid) const {
    const int t = thread_again(), row = t / 16;
    unsigned char* const to = shared + row * pitch + (t % 16 ^ row) * 16;
#pragma unroll
    for (int page = 0; page < keys / rows; ++page) {
      const bool exists = page * rows < valid;  // a page is valid as a whole
      const unsigned chunk = static_cast<unsigned>(table[entry + (exists ? page : 0)]) * page_chunks + head_chunk;
      const uint4* const from = reinterpret_cast<const uint4*>(data) + (chunk + static_cast<unsigned>(t));
#pragma unroll
      for (int i = 0; i < rows; i += 8)
        device::copy_async_16_or_zero(to + (page * rows + i) * pitch, from + i * row_chunks, exists);
    }
    device::commit_copies();
  }
  __device__ __forceinline__ void next_tile() { entry += keys / rows; }
};

// The sums of the block's rows over the `length` keys of a head. weigh(i, scores, sums) makes weights of the scores of the warp's
// i-th 16 rows, and rescales their sums if it must. Nobody reads shared memory after Q.
template <class Source, class Weigh>
__device__ __forceinline__ void sum_values(float (&sums)[2][head_size / 2], unsigned char* memory, const Lanes& lanes,
                                           const bf16* k, const bf16* v, Source source, int length, const Weigh& weigh) {
  unsigned char* const tile_of_k = memory + query_rows * pitch;
  unsigned char* const tile_of_v = tile_of_k + keys * pitch;
  source.copy_tile(tile_of_k, k, length);
  for (int remaining = length; remaining > 0; remaining -= keys) {
    device::wait_copies<0>();
    __syncthreads();  // K is here, and nobody reads the last V any more
    source.copy_tile(tile_of_v, v, remaining);
    source.next_tile();
    float scores[2][keys / 2];
    multiply_keys(scores, lanes);
    device::wait_copies<0>();
    __syncthreads();  // V is here, and nobody reads K any more
    if (remaining > keys) source.copy_tile(tile_of_k, k, remaining - keys);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (remaining < keys) hide_columns(scores[i], remaining);
      weigh(i, scores[i], sums[i]);
    }
    multiply_values(sums, scores, lanes);
  }
}

// Computes the maxima and the sums of exponentials of a warp's rows over the `length` keys of a head, without their values. Tiles
// of keys take turns in the places of K and V.
__device__ __forceinline__ void sum_exponentials(Rows (&rows)[2], unsigned char* memory, const Lanes& lanes, const bf16* k,
                                                 unsigned chunk, int length, float scale) {
  unsigned char* const tiles = memory + query_rows * pitch;
  int place = 0;  // in bytes
  copy_rows<keys>(tiles, k, chunk, length);
  for (int remaining = length; remaining > 0; remaining -= keys, place ^= keys * pitch) {
    device::wait_copies<0>();
    __syncthreads();  // this tile is here, and nobody reads the last one any more
    chunk += keys * row_chunks;
    if (remaining > keys) copy_rows<keys>(tiles + (place ^ keys * pitch), k, chunk, remaining - keys);
    float scores[2][keys / 2];
    multiply_keys(scores, lanes, place);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float factor[2];
      if (remaining < keys) hide_columns(scores[i], remaining);
      attention::online_softmax(scores[i], rows[i], scale, factor);
    }
  }
  __syncthreads();
}

// Rows of `o` from first_row on, by way of the shared memory of the warp's own query rows, so that whole rows of 256 bytes are
// written.
__device__ __forceinline__ void store_rows(const float (&sums)[2][head_size / 2], unsigned char* memory, bf16* o, int first_row,
                                           int length) {
  const int lane = thread_again() % 32, own = thread_again() / 32 * warp_rows;
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < head_size / 4; ++j)
      *reinterpret_cast<unsigned*>(memory + (own + i * 16 + j % 2 * 8 + lane / 4) * pitch + (j / 2 ^ lane / 4) * 16 +
                                   lane % 4 * 4) = device::narrow_bf16(sums[i][2 * j], sums[i][2 * j + 1]);
  __syncwarp();
#pragma unroll 2
  for (int i = own + lane / 16; i < own + warp_rows; i += 2)
    if (first_row + i < length)
      *reinterpret_cast<uint4*>(o + static_cast<std::size_t>(first_row + i) * head_size + lane % 16 * 8) =
          *reinterpret_cast<const uint4*>(memory + i * pitch + (lane % 16 ^ i % 8) * 16);
}

}  // namespace aisp::ch18::mma_tiles
