// SPDX-License-Identifier: Apache-2.0
// The kernels of a decoding step that step_autotuning launches as its settings say, and the settings.
#pragma once
#include <aisp/device/fence.cuh>

#include <array>

#include "attention/decode.hpp"
#include "decoder/layer.cuh"
#include "prompt_rows.cuh"

namespace aisp::ch20 {

namespace step {

using attention::ContiguousCache;
using Splits = attention::MergedByLast<attention::FixedSplits, bf16>;
using Attention = attention::Decode<ContiguousCache, Splits, float>;
using LastPiece = attention::Decode<ContiguousCache, attention::FixedSplits, bf16>;

constexpr int head_size = 128, group = 4, most_splits = 16;
constexpr std::array split_choices{1, 2, 3, 4, 6, 8, 12, 16};

template <class Work>
__global__ __launch_bounds__(attention::decode_threads,
                             attention::decode_blocks<head_size>) void attend_kernel(const __grid_constant__ Work work) {
  extern __shared__ __align__(1024) unsigned char memory[];
  device::let_dependents_start();
  device::wait_for_previous_kernel();
  attention::Piece piece;
  if (!work.splits.piece(static_cast<int>(blockIdx.y), piece)) return;
  attention::decode_block<head_size, group, 1>(work, static_cast<int>(blockIdx.x), piece, memory);
}

// Turned queries of a row, [head][head_size], and its turned keys and its values in the cache. A block to each row.
constexpr unsigned place_threads = 256;
static __global__ __launch_bounds__(place_threads) void place_kernel(const uint4* qkv, uint4* q, ContiguousCache cache,
                                                                     const int* lengths, const float* angles, int kv_heads) {
  device::let_dependents_start();
  device::wait_for_previous_kernel();
  constexpr int pieces = head_size / packet;
  const int row = static_cast<int>(blockIdx.x), position = lengths[row] - 1, heads = kv_heads * group;
  const int all = (heads + 2 * kv_heads) * pieces;
  const float4* const turns = reinterpret_cast<const float4*>(angles + static_cast<std::size_t>(position) * head_size);
  for (int i = static_cast<int>(threadIdx.x); i < all; i += place_threads) {
    const int head = i / pieces, piece = i % pieces;
    uint4 bits = qkv[static_cast<std::size_t>(row) * all + i];
    if (head < heads + kv_heads) bits = decoder::rotated(bits, {turns[2 * piece], turns[2 * piece + 1]});
    if (head < heads) {
      q[(static_cast<std::size_t>(row) * heads + head) * pieces + piece] = bits;
      continue;
    }
    const bool is_key = head < heads + kv_heads;
    const std::size_t to = cache.at(row, (head - heads) % kv_heads, position) + piece * packet;
    *reinterpret_cast<uint4*>(const_cast<bf16*>(is_key ? cache.k : cache.v) + to) = bits;
  }
}

enum Kind : std::size_t { of_qkv, of_o, of_gate_up, of_down, products };
struct Settings {
  std::array<int, products> product{};  // 0: what the library thinks best
  int splits = 1;
  bool is_fused = false, begins_early = false;
};

}  // namespace step
}  // namespace aisp::ch20
