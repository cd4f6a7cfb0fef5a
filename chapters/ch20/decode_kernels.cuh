// SPDX-License-Identifier: Apache-2.0
// The phases of a decoder layer at batch 1 as kernels: five a layer, whose warps request their first weights before they wait for
// the kernel before them, and one persistent kernel, whose warps have rings of weights that reach across phases.
#pragma once
#include <aisp/device/mbarrier.cuh>
#include <aisp/device/tma.cuh>
#include <aisp/launch.hpp>

#include "decode_phases.cuh"

namespace aisp::ch20::token {

// A warp's first packets of a row, requested.
struct Requested {
  uint4 packets[in_flight];
};
__device__ __forceinline__ Requested request(const uint4* row, int at, int count) {
  Requested r;
#pragma unroll
  for (int k = 0; k < in_flight; ++k) {
    const int i = at + k * device::warp_size + static_cast<int>(threadIdx.x) % device::warp_size;
    r.packets[k] = i < count ? __ldcs(row + i) : uint4{};
  }
  return r;
}
// The lane's part of a row's product with what lies from `with` on. `first`: the row's first packets.
__device__ __forceinline__ float add_row(Requested r, const uint4* row, int count, const uint4* with) {
  constexpr int together = in_flight * device::warp_size;
  float sum = 0;
#pragma unroll 1
  for (int at = 0; at < count; at += together) {
    if (at > 0) r = request(row, at, count);
    __syncwarp();  // keeps the compiler, which saves registers, from moving loads between the sums
#pragma unroll
    for (int k = 0; k < in_flight; ++k) {
      const int i = at + k * device::warp_size + static_cast<int>(threadIdx.x) % device::warp_size;
      if (i >= count) break;
      sum = multiply_add(r.packets[k], with[i], sum);
    }
  }
  return sum;
}
__device__ __forceinline__ int first_item(int items_of_warp) {
  return static_cast<int>(blockIdx.x * warps + threadIdx.x / device::warp_size) * items_of_warp;
}
__device__ __forceinline__ void begin_early() {
  device::let_dependents_start();
  device::wait_for_previous_kernel();
}

constexpr int blocks_an_sm = 3, words_of_warp = 8;
inline Grid grid_of(int items_of_warps) { return {static_cast<unsigned>((items_of_warps + warps - 1) / warps), threads}; }

// Norm, projection, RoPE, and the rows of the cache. A warp has two neighbouring rows.
static __global__ __launch_bounds__(threads, blocks_an_sm) void qkv_kernel(Network n, Activations a, int layer) {
  extern __shared__ __align__(16) uint4 normed[];
  __shared__ float sums[device::largest_block_in_warps];
  const int pair = first_item(1), count = n.hidden / packet;
  const uint4* const row = n.qkv + (static_cast<std::size_t>(layer) * n.qkv_columns() + 2 * pair) * count;
  const Requested first = request(row, 0, count);
  begin_early();
  normalize(residual(n, a, layer == 0), n.norms + static_cast<std::size_t>(2 * layer) * n.hidden, n.hidden, normed, sums);
  const float upper = add_row(first, row, count, normed);
  store_qkv(n, a, layer, pair, upper, add_row(request(row + count, 0, count), row + count, count, normed));
}
// blockIdx: the KV head, the piece.
static __global__ __launch_bounds__(threads) void attend_kernel(Network n, Activations a, int layer) {
  __shared__ AttentionMemory memory;
  begin_early();
  attend(n, a, layer, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y), memory);
}
// x += the product of rows of `weights` with what attention, or the MLP, has left. A warp has a row.
static __global__ __launch_bounds__(threads, blocks_an_sm) void residual_kernel(Network n, Activations a, const uint4* weights,
                                                                                const bf16* with, int count, bool is_first) {
  const int row = first_item(1);
  const uint4* const own = weights + static_cast<std::size_t>(row) * count;
  const Requested first = request(own, 0, count);
  begin_early();
  store_residual(residual(n, a, is_first), a.x, row, add_row(first, own, count, reinterpret_cast<const uint4*>(with)));
}
// Norm, gate and up, SwiGLU. A warp has a row of each.
static __global__ __launch_bounds__(threads, blocks_an_sm) void gate_up_kernel(Network n, Activations a, int layer) {
  extern __shared__ __align__(16) uint4 normed[];
  __shared__ float sums[device::largest_block_in_warps];
  const int row = first_item(1), count = n.hidden / packet;
  const uint4* const gate = n.gate_up + (static_cast<std::size_t>(layer) * 2 * n.ffn + row) * count;
  const uint4* const up = gate + static_cast<std::size_t>(n.ffn) * count;
  const Requested first = request(gate, 0, count);
  begin_early();
  normalize(residual(n, a, false), n.norms + static_cast<std::size_t>(2 * layer + 1) * n.hidden, n.hidden, normed, sums);
  const float of_gate = add_row(first, gate, count, normed);
  store_active(a, row, of_gate, add_row(request(up, 0, count), up, count, normed));
}
// Norm, logits, and the token. A warp has eight words.
static __global__ __launch_bounds__(threads, 2) void head_kernel(Network n, Activations a) {
  extern __shared__ __align__(16) uint4 normed[];
  __shared__ float sums[device::largest_block_in_warps];
  __shared__ unsigned long long best_of_warps[device::largest_block_in_warps];
  const int word = first_item(words_of_warp), count = n.hidden / packet;
  const auto row = [&](int i) { return n.head + static_cast<std::size_t>(word + i) * count; };
  Requested first = word < n.words ? request(row(0), 0, count) : Requested{};
  begin_early();
  normalize(residual(n, a, false), n.norms + static_cast<std::size_t>(2 * n.layers) * n.hidden, n.hidden, normed, sums);
  unsigned long long best = 0;
#pragma unroll 1
  for (int i = 0; i < words_of_warp && word + i < n.words; ++i) {
    if (i > 0) first = request(row(i), 0, count);
    store_logit(a, word + i, add_row(first, row(i), count, normed), best);
  }
  choose(n, a, best, best_of_warps);
}

// The persistent kernel.
constexpr int ring_threads = 512, ring_warps = ring_threads / device::warp_size, stages = 6;
constexpr int part = 128;  // packets of 16 bytes that a bulk copy brings, 2 KiB

struct RingMemory {
  uint4 ring[ring_warps][stages][part];
  std::uint64_t full[ring_warps][stages];
  AttentionMemory attention;
  unsigned long long best[device::largest_block_in_warps];
  float sums[device::largest_block_in_warps];
};

enum Matrix : int { of_qkv, of_o, of_gate_up, of_down, matrices };

// The order in which a warp reads its weights: in each layer its rows of the four matrices, then its rows of the head. `border`:
// matrices * layer + the matrix.
struct Cursor {
  int border = 0, row, at = 0;

  __device__ __forceinline__ int layer() const { return border / matrices; }
  __device__ __forceinline__ bool is_head(const Network& n) const { return border == matrices * n.layers; }
  __device__ __forceinline__ void advance(const Network& n, int first, int step) {
    if (++at < parts(n)) return;
    at = 0;
    row += step;
    skip(n, first);
  }
  __device__ __forceinline__ void skip(const Network& n, int first) {
    while (border <= matrices * n.layers && row >= items(n)) row = first, ++border;
  }
  // Returns the number of pairs of rows, or of rows, in the matrix.
  __device__ __forceinline__ int items(const Network& n) const {
    if (is_head(n)) return n.words;
    const int matrix = border % matrices;
    return matrix == of_qkv ? n.qkv_columns() / 2 : matrix == of_gate_up ? n.ffn : n.hidden;
  }
  __device__ __forceinline__ int parts(const Network& n) const {
    const int of_hidden = n.hidden / packet / part, matrix = border % matrices;
    if (is_head(n)) return of_hidden;
    return matrix == of_o ? n.q_columns() / packet / part : matrix == of_down ? n.ffn / packet / part : 2 * of_hidden;
  }
  __device__ __forceinline__ const uint4* source(const Network& n) const {
    const std::size_t of_hidden = n.hidden / packet, l = layer();
    if (is_head(n)) return n.head + row * of_hidden + at * part;
    switch (border % matrices) {
      case of_qkv: return n.qkv + (l * n.qkv_columns() + 2 * row) * of_hidden + at * part;
      case of_o: return n.o + (l * n.hidden + row) * (n.q_columns() / packet) + at * part;
      case of_down: return n.down + (l * n.hidden + row) * (n.ffn / packet) + at * part;
      default: {
        const int half = n.hidden / packet / part;
        const std::size_t of_row = l * 2 * n.ffn + row + (at >= half ? n.ffn : 0);
        return n.gate_up + of_row * of_hidden + at % half * part;
      }
    }
  }
};

// A warp's ring of weights. With `across`, those of later phases are requested while this one's are not all used.
template <bool across>
struct Reader {
  const Network& n;
  RingMemory& shared;
  int lane, warp, first, step;  // the warp's rows
  Cursor next;                  // to be requested
  int requested = 0, used = 0;

  __device__ __forceinline__ void refill(int border) {
    constexpr unsigned part_bytes = part * sizeof(uint4);
#pragma unroll 1
    while (requested < used + stages && next.border <= matrices * n.layers && (across || next.border <= border)) {
      const int s = requested++ % stages;
      if (lane == 0) {
        device::barrier_arrive_expect(&shared.full[warp][s], part_bytes);
        device::bulk_load(shared.ring[warp][s], next.source(n), part_bytes, &shared.full[warp][s]);
      }
      next.advance(n, first, step);
    }
  }
  // The lane's part of a row of `count` parts.
  __device__ __forceinline__ float add_parts(int border, int count, const uint4* with) {
    float sum = 0;
#pragma unroll 1
    for (int p = 0; p < count; ++p) {
      const int s = used % stages;
      device::barrier_wait(&shared.full[warp][s], static_cast<unsigned>(used / stages % 2));
#pragma unroll
      for (int i = 0; i < part; i += device::warp_size)
        sum = multiply_add(shared.ring[warp][s][i + lane], with[p * part + i + lane], sum);
      __syncwarp();  // all lanes have read the stage
      ++used;
      refill(border);
    }
    return sum;
  }
};

// Until all blocks have come here; what they wrote before is seen after it.
__device__ inline void meet(unsigned* arrived) {
  __syncthreads();
  if (threadIdx.x == 0) {
    device::add_release_gpu(arrived, 1);
    while (device::load_acquire_gpu(arrived) < gridDim.x) {
    }
  }
  __syncthreads();
}
__device__ inline void load_activations(const bf16* from, int columns, uint4* to) {
  for (int i = static_cast<int>(threadIdx.x); i < columns / packet; i += ring_threads)
    to[i] = __ldcg(reinterpret_cast<const uint4*>(from) + i);
  __syncthreads();
}

constexpr int meetings = 5;  // of a layer

template <bool across>
__global__ __launch_bounds__(ring_threads, 1) void token_kernel(Network n, Activations a, unsigned* arrived) {
  extern __shared__ __align__(128) unsigned char space[];
  RingMemory& shared = *reinterpret_cast<RingMemory*>(space);
  uint4* const with = reinterpret_cast<uint4*>(space + sizeof(RingMemory));
  const int lane = static_cast<int>(threadIdx.x) % device::warp_size, warp = static_cast<int>(threadIdx.x) / device::warp_size;
  const int first = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  const int step = static_cast<int>(gridDim.x) * ring_warps, of_hidden = n.hidden / packet / part;
  if (lane == 0)
    for (int s = 0; s < stages; ++s) device::barrier_init(&shared.full[warp][s], 1);
  device::fence_barrier_init();
  __syncthreads();

  Reader<across> weights{n, shared, lane, warp, first, step, {0, first}};
  weights.next.skip(n, first);
  weights.refill(0);
  const auto norm = [&](int which) { return n.norms + static_cast<std::size_t>(which) * n.hidden; };
#pragma unroll 1
  for (int layer = 0; layer < n.layers; ++layer, arrived += meetings) {
    int border = matrices * layer;
    normalize(residual(n, a, layer == 0), norm(2 * layer), n.hidden, with, shared.sums);
    weights.refill(border);
#pragma unroll 1
    for (int pair = first; pair < n.qkv_columns() / 2; pair += step) {
      const float upper = weights.add_parts(border, of_hidden, with);
      store_qkv(n, a, layer, pair, upper, weights.add_parts(border, of_hidden, with));
    }
    meet(arrived);
#pragma unroll 1
    for (int item = static_cast<int>(blockIdx.x); item < n.kv_heads * pieces; item += static_cast<int>(gridDim.x)) {
      attend(n, a, layer, item / pieces, item % pieces, shared.attention);
      __syncthreads();
    }
    meet(arrived + 1);
    load_activations(a.attended, n.q_columns(), with);
    weights.refill(++border);
#pragma unroll 1
    for (int row = first; row < n.hidden; row += step)
      store_residual(residual(n, a, layer == 0), a.x, row, weights.add_parts(border, n.q_columns() / packet / part, with));
    meet(arrived + 2);
    normalize(residual(n, a, false), norm(2 * layer + 1), n.hidden, with, shared.sums);
    weights.refill(++border);
#pragma unroll 1
    for (int row = first; row < n.ffn; row += step) {
      const float gate = weights.add_parts(border, of_hidden, with);
      store_active(a, row, gate, weights.add_parts(border, of_hidden, with));
    }
    meet(arrived + 3);
    load_activations(a.active, n.ffn, with);
    weights.refill(++border);
#pragma unroll 1
    for (int row = first; row < n.hidden; row += step)
      store_residual(residual(n, a, false), a.x, row, weights.add_parts(border, n.ffn / packet / part, with));
    meet(arrived + 4);
  }
  normalize(residual(n, a, false), norm(2 * n.layers), n.hidden, with, shared.sums);
  weights.refill(matrices * n.layers);
  unsigned long long best = 0;
#pragma unroll 1
  for (int word = first; word < n.words; word += step)
    store_logit(a, word, weights.add_parts(matrices * n.layers, of_hidden, with), best);
  choose(n, a, best, shared.best);
}

// Products alone, for a graph that fuses nothing. A warp has a row.
template <class Out>
__global__ __launch_bounds__(threads, blocks_an_sm) void product_kernel(const uint4* weights, const bf16* with, Out* y, int count,
                                                                        int rows) {
  const int row = first_item(1);
  if (row >= rows) return;
  const uint4* const own = weights + static_cast<std::size_t>(row) * count;
  const float sum = device::warp_sum(add_row(request(own, 0, count), own, count, reinterpret_cast<const uint4*>(with)));
  if (threadIdx.x % device::warp_size == 0) y[row] = static_cast<Out>(sum);
}

// Reads all weights and computes nothing of use: the stream without borders.
struct AllWeights {
  const uint4* data[5];
  std::size_t packets[5];
};
static __global__ __launch_bounds__(threads) void read_kernel(AllWeights weights, unsigned* sink) {
  unsigned found = 0;
  const std::size_t step = std::size_t{gridDim.x} * threads * in_flight;
#pragma unroll
  for (int m = 0; m < 5; ++m)
    for (std::size_t i = std::size_t{blockIdx.x} * threads * in_flight + threadIdx.x; i < weights.packets[m]; i += step) {
      uint4 read[in_flight];
#pragma unroll
      for (int k = 0; k < in_flight; ++k)
        read[k] = i + k * threads < weights.packets[m] ? __ldcs(weights.data[m] + i + k * threads) : uint4{};
#pragma unroll
      for (int k = 0; k < in_flight; ++k) found ^= read[k].x ^ read[k].y ^ read[k].z ^ read[k].w;
    }
  if (found == 0x12345678) *sink = found;
}

}  // namespace aisp::ch20::token
