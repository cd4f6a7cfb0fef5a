// SPDX-License-Identifier: Apache-2.0
// Gated linear attention in chunks of 64 tokens on wgmma (sm_90a), heads of 128 columns. Each of two warpgroups has half of the
// values' columns and never meets the other: it keeps its half of the state, transposed, in registers, and a copy in shared
// memory for the queries. One warp keeps a ring of chunks full by TMA, another adds up their decays.
#pragma once
#include <aisp/device/fence.cuh>
#include <aisp/device/matrix.cuh>
#include <aisp/device/mbarrier.cuh>
#include <aisp/device/tma.cuh>
#include <aisp/device/warpgroup.cuh>
#include <aisp/device/wgmma_products.cuh>

#include <cuda_bf16.h>

#include <type_traits>

#include "linear_decays.cuh"

namespace aisp::ch18::linear_wgmma {
namespace {

using bf16 = __nv_bfloat16;

constexpr int head_size = 128, tokens = 64, stages = 3, warpgroup = 128, threads = 3 * warpgroup;
constexpr int box = tokens * 64;  // elements of 64 columns

struct alignas(1024) Memory {
  bf16 q[stages][2][box], k[stages][2][box], v[stages][2][box];
  bf16 states[2][2][64 * 64];  // by warpgroup and 64 columns of the keys; its columns of the values are rows
  bf16 o[2][2][box];           // by warpgroup and turn
  Decays<tokens> decays[stages];
  std::uint64_t full[stages], empty[stages];
};

struct Maps {
  CUtensorMap q, k, v, o;  // [head][token][column], boxes of 64 tokens and 64 columns
};

struct Ring {
  int chunk;
  __device__ __forceinline__ int slot() const { return chunk % stages; }
  __device__ __forceinline__ unsigned parity() const { return static_cast<unsigned>(chunk / stages % 2); }
};

__device__ __forceinline__ void load_chunks(Memory& memory, const Maps& maps, int chunks) {
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const Ring at{chunk};
    std::uint64_t* const full = &memory.full[at.slot()];
    device::barrier_wait(&memory.empty[at.slot()], at.parity() ^ 1);
    device::barrier_arrive_expect(full, 6 * box * sizeof(bf16));
    for (int i = 0; i < 2; ++i) {
      const int head = static_cast<int>(blockIdx.x);
      device::tensor_load_4d(memory.q[at.slot()][i], &maps.q, i * 64, chunk * tokens, head, 0, full);
      device::tensor_load_4d(memory.k[at.slot()][i], &maps.k, i * 64, chunk * tokens, head, 0, full);
      device::tensor_load_4d(memory.v[at.slot()][i], &maps.v, i * 64, chunk * tokens, head, 0, full);
    }
  }
}

// Decays are loaded a turn before they are added up.
__device__ __forceinline__ void scan_chunks(Memory& memory, const float* decays, int length, int chunks) {
  decays += static_cast<std::size_t>(blockIdx.x) * length;
  DecayScan<tokens> next;
  next.load(decays, length);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const Ring at{chunk};
    const DecayScan<tokens> scan = next;
    const int behind = (chunk + 1) * tokens;
    next.load(decays + behind, length - behind);
    device::barrier_wait(&memory.empty[at.slot()], at.parity() ^ 1);
    scan.scan(memory.decays[at.slot()]);
    __syncwarp();
    if (threadIdx.x % 32 == 0) device::barrier_arrive(&memory.full[at.slot()]);
  }
}

template <device::Major b_major, int count, class A>
__device__ __forceinline__ void multiply(float (&d)[count], const A& a, std::uint64_t b, bool add) {
  if constexpr (std::is_same_v<A, std::uint64_t>) device::wgmma<device::Operands::bf16, device::Major::k, b_major>(d, a, b, add);
  else device::wgmma<device::Operands::bf16, b_major>(d, a, b, add);
}

// A warpgroup's half of a head: 64 columns of the values.
struct Half {
  Memory& memory;
  int index;
  float state[64];  // 64 columns of the values times 128 of the keys
  float scores[32], results[32];
  unsigned weights[4][4], values[4][4];

  __device__ __forceinline__ static int thread() { return static_cast<int>(threadIdx.x) % warpgroup; }
  __device__ __forceinline__ void sync() const { device::named_barrier_sync(1 + index, warpgroup); }
  // Returns the beginning of a lane's 16 rows and 16 columns in a box.
  __device__ __forceinline__ static unsigned fragment(int i) {
    const int lane = thread() % 32, row = thread() / 32 * 16 + lane % 16;
    return static_cast<unsigned>(row * 128 + ((i * 2 + lane / 16) ^ row % 8) * 16);
  }
  // d = Q B^T over all columns of the keys.
  __device__ __forceinline__ static void start_rows(float (&d)[32], const bf16 (&q)[2][box], const bf16 (&rows)[2][box]) {
    const std::uint64_t a = device::operand(q[0]), b = device::operand(rows[0]);
    device::wgmma_touch(d);
    device::wgmma_fence();
#pragma unroll
    for (int i = 0; i < head_size / 16; ++i)
      multiply<device::Major::k>(d, device::advance(a, i / 4 * box * 2 + i % 4 * 32),
                                 device::advance(b, i / 4 * box * 2 + i % 4 * 32), i > 0);
    device::wgmma_commit();
  }
  // d += A B for tokens that are A's columns and B's rows.
  template <int count>
  __device__ __forceinline__ static void start_sums(float (&d)[count], const unsigned (&a)[4][4], const bf16* rows) {
    const std::uint64_t b = device::operand(rows, 1024, box * 2);
    device::wgmma_touch(d);
    device::wgmma_fence();
#pragma unroll
    for (int i = 0; i < tokens / 16; ++i) multiply<device::Major::mn>(d, a[i], device::advance(b, i * 2048), true);
    device::wgmma_commit();
  }
  // The values' columns as rows, each token times the decays after it.
  __device__ __forceinline__ void decay_values(const bf16* v, const Decays<tokens>& decays) {
    const int lane = thread() % 32;
    const unsigned from =
        device::shared_address(v) + (lane / 16 * 8 + lane % 8) * 128 + ((thread() / 32 * 2 + lane / 8 % 2) ^ lane % 8) * 16;
#pragma unroll
    for (int i = 0; i < tokens / 16; ++i) {
      unsigned words[4];
      device::load_matrices_transposed(words, from + i * 2048);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 factor = *reinterpret_cast<const float2*>(&decays.to_end[i * 16 + j / 2 * 8 + lane % 4 * 2]);
        values[i][j] =
            device::narrow_bf16(__uint_as_float(words[j] << 16) * factor.x, __uint_as_float(words[j] & 0xFFFF0000u) * factor.y);
      }
    }
  }
  __device__ __forceinline__ void weigh(const Decays<tokens>& decays, float scale) {
    const int row = thread() / 32 * 16 + thread() % 32 / 4, column = thread() % 4 * 2;
    const float of_row[2] = {decays.sums[row], decays.sums[row + 8]};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 of_column = *reinterpret_cast<const float2*>(&decays.sums[j * 8 + column]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float factor = scale * device::exp2_approximate(of_row[i / 2] - (i % 2 == 0 ? of_column.x : of_column.y));
        scores[4 * j + i] = j * 8 + column + i % 2 <= row + i / 2 * 8 ? scores[4 * j + i] * factor : 0;
      }
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) weights[i / 4][i % 4] = device::narrow_bf16(scores[2 * i], scores[2 * i + 1]);
  }
  __device__ __forceinline__ void decay_results(const Decays<tokens>& decays, float scale) {
    const int row = thread() / 32 * 16 + thread() % 32 / 4;
    const float factor[2] = {scale * decays.from_begin[row], scale * decays.from_begin[row + 8]};
#pragma unroll
    for (int i = 0; i < 32; ++i) results[i] *= factor[i / 2 % 2];
  }
  template <int count>
  __device__ __forceinline__ static void store(bf16* to, const float (&d)[count], int first) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      unsigned words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) words[j] = device::narrow_bf16(d[first + 8 * i + 2 * j], d[first + 8 * i + 2 * j + 1]);
      device::store_matrices(device::shared_address(to) + fragment(i), words[0], words[1], words[2], words[3]);
    }
  }
  // Makes what was stored known to the products, and what was stored to memory before last overwritable.
  __device__ __forceinline__ void publish() const {
    device::fence_proxy_async_shared();
    if (thread() == 0) device::wait_stores_read<0>();
    sync();
  }
};

__device__ __forceinline__ void take_chunks(Memory& memory, const Maps& maps, int chunks, float scale) {
  Half own{memory, static_cast<int>(threadIdx.x) / warpgroup - 1, {}, {}, {}, {}, {}};
  bf16(&states)[2][64 * 64] = memory.states[own.index];
  own.store(states[0], own.state, 0);
  own.store(states[1], own.state, 32);
  own.publish();
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const Ring at{chunk};
    const int slot = at.slot();
    const Decays<tokens>& decays = memory.decays[slot];
    device::barrier_wait(&memory.full[slot], at.parity());
    const float total = decays.total;
#pragma unroll
    for (float& x : own.state) x *= total;
    own.start_rows(own.scores, memory.q[slot], memory.k[slot]);
    own.start_rows(own.results, memory.q[slot], states);
    own.decay_values(memory.v[slot][own.index], decays);
    device::wgmma_wait<1>();
    device::wgmma_touch(own.scores);
    own.start_sums(own.state, own.values, memory.k[slot][0]);
    own.weigh(decays, scale);
    device::wgmma_wait<1>();
    device::wgmma_touch(own.results);
    own.decay_results(decays, scale);
    own.start_sums(own.results, own.weights, memory.v[slot][own.index]);
    device::wgmma_wait<1>();
    device::wgmma_touch(own.state);
    own.store(states[0], own.state, 0);
    own.store(states[1], own.state, 32);
    device::wgmma_wait<0>();
    device::wgmma_touch(own.results);
    __syncwarp();  // all lanes have read the decays
    if (threadIdx.x % 32 == 0) device::barrier_arrive(&memory.empty[slot]);
    bf16* const o = memory.o[own.index][chunk % 2];
    own.store(o, own.results, 0);
    own.publish();
    if (own.thread() != 0) continue;
    device::tensor_store_4d(&maps.o, own.index * 64, chunk * tokens, static_cast<int>(blockIdx.x), 0, o);
    device::commit_stores();
  }
  if (own.thread() == 0) device::wait_stores_read<0>();
}

// A block for each head.
__global__ __launch_bounds__(threads, 1) void wgmma_kernel(const __grid_constant__ Maps maps, const float* decays, int length,
                                                           float scale) {
  extern __shared__ __align__(1024) unsigned char shared[];
  Memory& memory = *reinterpret_cast<Memory*>(shared);
  const int chunks = (length + tokens - 1) / tokens;
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; ++i) {
      device::barrier_init(&memory.full[i], 2);
      device::barrier_init(&memory.empty[i], 2 * warpgroup / 32);
    }
    device::fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x < warpgroup) {
    device::give_up_registers<40>();
    if (threadIdx.x == 0) load_chunks(memory, maps, chunks);
    else if (threadIdx.x / 32 == 1) scan_chunks(memory, decays, length, chunks);
  } else {
    device::take_registers<232>();
    take_chunks(memory, maps, chunks, scale);
  }
}

}  // namespace
}  // namespace aisp::ch18::linear_wgmma
